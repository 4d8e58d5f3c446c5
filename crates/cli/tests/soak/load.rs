//! The effect on other clients of a server with thousands of idle connections, hundreds of watches
//! and slow clients. It prints figures, which docs/security.md has; `cargo xtask soak` runs it.

use crate::fleet::{Clients, Server, Setup, TEST_TIMEOUT, TEST_TOKEN};
use proto::v1;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const IDLE: usize = 2_000;
const WATCHES: usize = 500;
const SLOW: usize = 200;
/// The time for which each situation is measured.
const SPAN: Duration = Duration::from_secs(5);
/// More than a call may take beside the load, and far less than a client waits.
const MAX_P99: Duration = Duration::from_millis(500);

/// Addresses of loopback, because one address may have only some connections.
async fn connect(index: usize, port: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let source = format!("127.0.{}.{}:0", 1 + index / 200, 1 + index % 200);
    socket.bind(source.parse().unwrap()).unwrap();
    socket.connect(format!("127.0.0.1:{port}").parse().unwrap()).await.unwrap()
}

/// The measurements of one ordinary client: reads one after the other, and runs.
#[derive(Debug)]
struct Noticed {
    reads_per_second: f64,
    p50: Duration,
    p99: Duration,
    run: Duration,
}

async fn measure(server: &Server, name: &str) -> Noticed {
    let mut api = server.clients().await;
    let (started, mut samples) = (Instant::now(), Vec::new());
    while started.elapsed() < SPAN {
        let begun = Instant::now();
        api.machine("m-0").await;
        samples.push(begun.elapsed());
    }
    let reads_per_second = samples.len() as f64 / started.elapsed().as_secs_f64();
    samples.sort();
    let begun = Instant::now();
    let run = api.start("m-0", "REBOOT", name).await;
    api.finished(&run.run_id).await;
    let at = |share: usize| samples[samples.len() * share / 100];
    let noticed = Noticed { reads_per_second, p50: at(50), p99: at(99), run: begun.elapsed() };
    let Noticed { reads_per_second, p50, p99, run } = &noticed;
    println!(
        "{name}: {reads_per_second:.0} reads/s, median {p50:.1?}, p99 {p99:.1?}; a reboot takes {run:.1?}"
    );
    noticed
}

/// Watches of one client each, which count what they receive.
async fn watch(url: &str, received: &Arc<AtomicUsize>) -> Vec<JoinHandle<()>> {
    let mut watches = Vec::new();
    // Some connections with many watches each, as a fleet of consoles has.
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(Clients::connect(url).await);
    }
    for index in 0..WATCHES {
        let mut client = clients[index % clients.len()].clone();
        let watching = client.runs.watch_runs(v1::WatchRunsRequest::default()).await;
        let mut stream = watching.unwrap().into_inner();
        let received = Arc::clone(received);
        watches.push(tokio::spawn(async move {
            while let Ok(Some(_)) = stream.message().await {
                received.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    watches
}

/// Clients that send one byte of a request per second, and read nothing.
async fn crawl(port: u16, stop: Arc<AtomicBool>) {
    let head = format!(
        "POST /farrier.v1.MachineService/GetMachine HTTP/1.1\r\nHost: 127.0.0.1\r\n\
         Authorization: Bearer {TEST_TOKEN}\r\nContent-Type: application/grpc\r\n\
         Content-Length: 100000\r\n\r\n"
    );
    let mut streams = Vec::new();
    for index in 0..SLOW {
        let mut stream = connect(IDLE + index, port).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    while !stop.load(Ordering::Relaxed) {
        for stream in &mut streams {
            let _ = stream.write_all(b"x").await;
        }
        sleep(Duration::from_secs(1)).await;
    }
}

fn expect_calm(noticed: &Noticed, situation: &str) {
    assert!(noticed.p99 < MAX_P99, "{situation}: {noticed:?}");
    assert!(noticed.run < Duration::from_secs(10), "{situation}: {noticed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_notice_of_many_connections() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "zero");
    // Idle connections stay for the whole measurement.
    setup.config = "[connections]\nfirst_byte_seconds = 600\nidle_seconds = 600\nmax_api = 4096\n\
                    max_per_peer = 1024\n"
        .into();
    let server = Server::start(setup);
    let port = server.setup.port;
    let mut api = server.clients().await;
    api.in_maintenance("m-0").await;
    measure(&server, "nothing else").await;

    let mut idle = Vec::new();
    for index in 0..IDLE {
        idle.push(connect(index, port).await);
    }
    expect_calm(&measure(&server, "2,000 idle connections").await, "idle");
    let open = idle.iter().filter(|stream| {
        let read = stream.try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
    assert_eq!(open.count(), IDLE, "the server closed idle connections");

    let received = Arc::new(AtomicUsize::new(0));
    let watches = watch(&server.url(), &received).await;
    expect_calm(&measure(&server, "and 500 watches").await, "watches");
    let started = Instant::now();
    let run = api.start("m-0", "REBOOT", "watched").await;
    api.finished(&run.run_id).await;
    // Every watch gets at least the acceptance and the end of the run.
    while received.load(Ordering::Relaxed) < 2 * WATCHES {
        assert!(started.elapsed() < TEST_TIMEOUT, "{received:?}");
        sleep(Duration::from_millis(1)).await;
    }
    println!("events at 500 watches after {:.1?}", started.elapsed());

    let stop = Arc::new(AtomicBool::new(false));
    let crawling = tokio::spawn(crawl(port, Arc::clone(&stop)));
    sleep(Duration::from_secs(1)).await;
    expect_calm(&measure(&server, "and 200 slow clients").await, "slow clients");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let memory = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    println!("resident memory: {}", memory.trim_start_matches("VmRSS:").trim());
    stop.store(true, Ordering::Relaxed);
    timeout(TEST_TIMEOUT, crawling).await.unwrap().unwrap();
    watches.iter().for_each(JoinHandle::abort);
}
