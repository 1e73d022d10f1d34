//! Samples of real connections, and their evaluation.

use std::net::Ipv4Addr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::listen::bind_tcp;

const SECOND: Duration = Duration::from_secs(1);

fn resent(last_sent: u32, last_received: u32) -> Acknowledgment {
    let (last_sent, last_received) = (SECOND * last_sent, SECOND * last_received);
    Acknowledgment { outstanding: true, last_sent, last_received, probes: 0, min_rtt: None }
}

/// After how many seconds a host is given up that is sampled each second.
fn given_up(see: impl Fn(u32) -> Acknowledgment) -> Option<u32> {
    let (began, mut silence) = (Instant::now(), HostSilence::default());
    (0..200).find(|second| silence.is_over(began + SECOND * *second, see(*second)))
}

#[test]
fn a_host_that_acknowledges_nothing_is_given_up_after_thirty_seconds() {
    // Retransmissions after 1, 3, 7, 15 and 31 s; then after 0.2 s and so on to 25 s.
    let doubling = |second: u32| resent(second + 1 - (second + 2).next_power_of_two() / 2, second + 5);
    assert_eq!(given_up(doubling), Some(32));
    assert_eq!(given_up(|second| resent(second.saturating_sub(25), second + 5)), Some(30));
    let local = given_up(|second| resent(second.saturating_sub(12), second + 5));
    assert_eq!(local, Some(60), "later tries fail on this machine, for want of a route");
}

#[test]
fn an_acknowledgment_begins_the_silence_anew() {
    let seen = |second: u32| match second {
        20 => resent(0, 1),
        _ => resent(3, second),
    };
    assert_eq!(given_up(seen), Some(50));
    let answered = Acknowledgment { outstanding: false, ..resent(100, 100) };
    assert_eq!(given_up(|second| if second % 20 == 0 { answered } else { resent(3, 200) }), None);
}

#[test]
fn one_lost_probe_of_a_closed_window_is_no_silence() {
    let probed = |probes| move |second| Acknowledgment { probes, ..resent(600, second + 60) };
    assert_eq!((given_up(probed(1)), given_up(probed(2))), (None, Some(30)));
}

#[test]
fn an_answer_of_the_kernel_is_read_with_its_attributes_in_any_order() {
    let mut info = [0; 104];
    info[..4].copy_from_slice(&[ESTABLISHED, 0, 3, 0]);
    let mut set = |number: usize, value: u32| {
        info[8 + 4 * number..12 + 4 * number].copy_from_slice(&value.to_ne_bytes());
    };
    set(4, 1);
    set(9, 700);
    set(12, 9_000);
    let mut answer = vec![0; ANSWER];
    answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    for (kind, value) in [(8, &[1][..]), (INET_DIAG_INFO, &info[..])] {
        answer.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        answer.extend_from_slice(&u16::to_ne_bytes(kind));
        answer.extend_from_slice(value);
        answer.resize(answer.len().next_multiple_of(4), 0);
    }
    let seen = read(&answer).unwrap();
    assert_eq!((seen.outstanding, seen.probes), (true, 0));
    assert_eq!((seen.last_sent.as_millis(), seen.last_received.as_millis()), (700, 9_000));
    for cut in 0..answer.len() {
        assert_eq!(read(&answer[..cut]), None, "{cut}");
    }
    // The shortest error answer.
    assert_eq!(read(&[36, 0, 0, 0, 2, 0, 0, 0]), None);
}

/// A connection with a stalled reader and full kernel buffers.
async fn stuffed(listener: TcpListener) -> (TcpStream, TcpStream) {
    let at = (Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
    let (client, accepted) = tokio::join!(TcpStream::connect(at), listener.accept());
    let (mut client, accepted) = (client.unwrap(), accepted.unwrap().0);
    let piece = vec![1; 1 << 16];
    while timeout(SECOND / 5, client.write(&piece)).await.is_ok() {}
    (client, accepted)
}

#[tokio::test]
async fn a_reader_that_stands_still_is_no_silent_host() {
    // The second one's addresses are IPv4-mapped IPv6 addresses.
    for host in ["127.0.0.1", "::"] {
        let (client, accepted) = stuffed(bind_tcp(host, 0).unwrap()).await;
        for stream in [&client, &accepted] {
            let peer = bound_silence(stream).unwrap().expect("sock_diag");
            let seen = peer.acknowledgment().unwrap();
            assert!(!seen.outstanding, "{host}");
            assert!(seen.min_rtt.is_some_and(|rtt| rtt < SECOND), "{host}: {:?}", seen.min_rtt);
            assert_eq!(SockRef::from(stream).tcp_user_timeout().unwrap(), None);
        }
        let peer = TcpPeer::of(&client).unwrap();
        drop((client, accepted));
        assert!(peer.acknowledgment().is_err(), "gone");
    }
}
