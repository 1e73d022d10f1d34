//! What a page of the status costs a server with 16,000 agents and 50,000 connections: its time, the CPU time of the `ops`
//! thread and of the data threads, and what one page a second does to dials.
//!
//! The registry, the dialer, the admin port and its client are real. Each agent is a task on the data threads that answers
//! dials and reports, without a network.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use driver::MemoryLimiter;
use flags::{Bind, BindHost};
use serve::http::admin::with_status;
use serve::http::{OpsRuntime, Routes, serve};
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, sleep_until};

use super::tests::{AGENTS, CONNECTIONS, World};
use crate::dial::{DialStages, Dialer, Target};
use crate::limits::Budget;

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Pages that a browser, a command or a script asks for.
const PAGES: [(&str, &str); 9] = [
    ("page", "/"),
    ("page of stalled connections", "/?list=connections&sort=-stalled_seconds"),
    ("first document", "/statusz"),
    ("1,000 agents", "/statusz?list=agents&limit=1000"),
    ("agents by connections", "/statusz?list=agents&sort=-connections"),
    ("agents with a text", "/statusz?list=agents&filter=agent-15999"),
    ("connections by bytes", "/statusz?list=connections&sort=-bytes_from_endpoint"),
    ("last connections by bytes", "/statusz?list=connections&sort=-bytes_from_endpoint&offset=49900"),
    ("last connections by distinct bytes", "/statusz?list=connections&sort=-bytes_to_endpoint&offset=49900"),
];

/// The pages that are asked for each second beside dials.
const POLLED: [(&str, &str); 2] = [PAGES[0], PAGES[6]];

const TIMES: usize = 10;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);
const DIAL_EVERY: Duration = Duration::from_millis(1);

/// Nanoseconds of CPU time that the threads of this name have used.
fn cpu(name: &str) -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
    let is = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim() == name)
    };
    let used = |path: std::path::PathBuf| {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
    };
    threads.filter(is).filter_map(used).sum()
}

fn get(admin: SocketAddr, path: &str) -> usize {
    let mut stream = TcpStream::connect(admin).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    answer.len()
}

fn percentile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * part).round() as usize]
}

/// Dials on the data threads for one round, and asks for `page` once a second if there is one.
fn round(data: &Handle, dialer: &Dialer, admin: SocketAddr, page: Option<&str>) -> Vec<Duration> {
    let dialer = dialer.clone();
    let dials = data.spawn(async move {
        let (began, mut times) = (Instant::now(), Vec::new());
        let mut ticks = tokio::time::interval(DIAL_EVERY);
        let target = Target::new("tcp", "node:10250");
        while began.elapsed() < ROUND {
            ticks.tick().await;
            let dialed = Instant::now();
            dialer.dial(&target, &mut DialStages::default()).await.unwrap();
            times.push(dialed.elapsed());
        }
        times
    });
    for _ in 0..ROUND.as_secs() {
        let next = Instant::now() + Duration::from_secs(1);
        if let Some(page) = page {
            get(admin, page);
        }
        data.block_on(async { sleep_until(next).await });
    }
    data.block_on(dials).unwrap()
}

#[test]
fn cost_of_pages_with_16000_agents_and_50000_connections() {
    let data =
        Builder::new_multi_thread().worker_threads(2).thread_name("data").enable_all().build().unwrap();
    let ops = OpsRuntime::start().unwrap();
    let entered = data.enter();
    let world = World::new(AGENTS);
    drop(entered);
    let (backends, dials) = (world.sources.backends.clone(), world.sources.metrics.dials.clone());
    let budget = Budget::new(1 << 20, 1 << 20);
    let dialer = Dialer::new(backends, budget, MemoryLimiter::new(1 << 30), Duration::ZERO, dials);
    let host = BindHost::parse("127.0.0.1");
    let sources = world.sources.clone();
    let document = move |query| sources.clone().document(query);
    let routes = with_status(Routes::default(), (&host, false), Vec::new, document);
    let port = serve(ops.handle(), "admin", Bind { host, port: 0 }, routes);
    let admin = data.block_on(port.address().wait_for(Option::is_some)).unwrap().unwrap();

    println!("{AGENTS} agents, {CONNECTIONS} connections");
    for (name, page) in PAGES {
        get(admin, page);
        let (before, mut times, mut bytes) = ([cpu("ops"), cpu("data")], Vec::new(), 0);
        for _ in 0..TIMES {
            let began = Instant::now();
            bytes = get(admin, page);
            times.push(began.elapsed());
        }
        let each = |now: u64, before: u64| Duration::from_nanos((now - before) / TIMES as u64);
        let [ops, data] = [each(cpu("ops"), before[0]), each(cpu("data"), before[1])];
        let [median, most] = [percentile(&mut times, 0.5), percentile(&mut times, 1.0)];
        println!(
            "{name}: median {median:.1?}, most {most:.1?}, CPU ops {ops:.1?}, data {data:.1?}, {bytes} bytes"
        );
    }
    for (name, page) in POLLED {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.extend(round(data.handle(), &dialer, admin, None));
            with.extend(round(data.handle(), &dialer, admin, Some(page)));
        }
        let of = |times: &mut [Duration]| [0.5, 0.99, 0.999].map(|part| percentile(times, part));
        let dials = without.len() + with.len();
        println!(
            "{dials} dials, p50, p99, p99.9 without a poll {:.1?}, with one a second of {name} {:.1?}",
            of(&mut without),
            of(&mut with)
        );
    }
}
