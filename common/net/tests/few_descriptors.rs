//! A process with few descriptors. Their limit holds for the whole process, so this file has one test.

use std::fs::File;
use std::time::Duration;

use net::listen::{AcceptLoop, Priority, UnixSocket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

#[tokio::test(start_paused = true)]
async fn client_that_waited_for_descriptors_gets_a_low_number() {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: hard }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.sock");
    let socket = UnixSocket::bind(&path, true).unwrap();
    let mut accepting = AcceptLoop::new(socket, "test").with_priority(Priority::Client);
    let _client = UnixStream::connect(&path).await.unwrap();
    let mut taken = Vec::new();
    while Priority::Client.may_open() {
        taken.push(File::open("/dev/null").unwrap());
    }
    let early = timeout(Duration::from_secs(1), accepting.accept()).await;
    assert!(early.is_err(), "accepted with a reserved descriptor");
    std::fs::remove_file(&path).unwrap();
    let bound_again = async {
        while !path.exists() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        _ = accepting.accept() => panic!("accepted with a reserved descriptor"),
        bound = timeout(Duration::from_secs(60), bound_again) => bound.expect("bound again meanwhile"),
    }
    taken.clear();
    let accepted = timeout(Duration::from_secs(60), accepting.accept()).await.expect("accepted afterwards");
    assert!(Priority::Connection.may_keep(&accepted), "its number stayed high");
}
