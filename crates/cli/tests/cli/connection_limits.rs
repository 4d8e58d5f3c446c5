//! Peers that open connections and do not use them keep nobody out, and no machine suffers.

use crate::api::{conditions, is};
use crate::fleet::{Channel, Clients, Server, Setup, TEST_TIMEOUT, TEST_TOKEN, channel};
use proto::v1;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tonic::client::GrpcService;
use tonic::codegen::{Body, http};

const MACHINES: usize = 5;
/// The start of a request whose head never ends.
const HALF_A_HEAD: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A request whose body never comes: it is in progress.
fn request_without_body() -> Vec<u8> {
    format!(
        "POST /farrier.v1.MachineService/GetMachine HTTP/1.1\r\nHost: 127.0.0.1\r\n\
         Authorization: Bearer {TEST_TOKEN}\r\nContent-Type: application/grpc\r\n\
         Content-Length: 100\r\n\r\n"
    )
    .into_bytes()
}

/// A request of a stranger whose body never comes.
fn sign_in_without_body(port: u16) -> Vec<u8> {
    format!(
        "POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\n"
    )
    .into_bytes()
}

/// Connects from an address of loopback, of which there are many.
async fn connect_from(source: &str, port: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    socket.connect(format!("127.0.0.1:{port}").parse().unwrap()).await.unwrap()
}

/// Opens connections that send these bytes and then nothing. A refused one counts too.
async fn hold(source: &str, port: u16, bytes: &[u8], count: usize) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = connect_from(source, port).await;
        // The server may have closed it already.
        let _ = stream.write_all(bytes).await;
        held.push(stream);
    }
    held
}

/// Opens connections with a request in progress, again and again, until it is stopped: more than
/// the server has descriptors for.
async fn press(port: u16, stop: Arc<AtomicBool>) {
    const MOST: usize = 250;
    let mut held: Vec<TcpStream> = Vec::new();
    let mut sources = (2..22).cycle();
    while !stop.load(Ordering::Relaxed) {
        // The server closes one whose request it has not seen yet.
        held.retain(|stream| {
            let read = stream.try_read(&mut [0]);
            read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        if held.len() < MOST {
            let source = format!("127.0.0.{}", sources.next().unwrap());
            let one =
                timeout(Duration::from_secs(1), hold(&source, port, &request_without_body(), 1))
                    .await;
            held.extend(one.unwrap_or_default());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A kept HTTP/1 connection.
struct Kept(TcpStream);

impl Kept {
    async fn open(port: u16) -> Self {
        Self(connect_from("127.0.0.1", port).await)
    }

    /// The body of a page, on the same connection as the last one.
    async fn get(&mut self, path: &str) -> String {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TEST_TOKEN}\r\n\r\n"
        );
        self.0.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&answer).to_string();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
                if body.len() >= length {
                    return body.to_string();
                }
            }
            assert_ne!(self.0.read_buf(&mut answer).await.unwrap(), 0, "closed: {text}");
        }
    }

    async fn metric(&mut self, series: &str) -> f64 {
        value_of(series, &self.get("/metrics").await)
    }
}

fn value_of(series: &str, page: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(&format!("{series} ")));
    let line = line.unwrap_or_else(|| panic!("there is no {series}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A page on the connection of an open watch, which is never closed for others.
async fn page_beside_a_watch(channel: &mut Channel, path: &str) -> String {
    std::future::poll_fn(|cx| GrpcService::poll_ready(channel, cx)).await.unwrap();
    let request = http::Request::get(path).body(tonic::body::Body::empty()).unwrap();
    let mut body = GrpcService::call(channel, request).await.unwrap().into_body();
    let mut page = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        page.extend(frame.unwrap().into_data().unwrap_or_default());
    }
    String::from_utf8(page).unwrap()
}

/// Waits until a counter has grown by this much.
async fn grown(series: &str, by: f64, mut page: impl AsyncFnMut() -> String) {
    let (before, started) = (value_of(series, &page().await), Instant::now());
    while value_of(series, &page().await) < before + by {
        assert!(started.elapsed() < TEST_TIMEOUT, "{series} stays at {before}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn refused(reason: &str) -> String {
    format!("farrier_connections_refused_total{{listener=\"api\",reason=\"{reason}\"}}")
}

fn frequent_probes(dir: &std::path::Path, connections: &str) -> Setup {
    let mut setup = Setup::new(dir, "zero");
    setup.config =
        format!("[probes]\ninterval_ms = 200\ndown_after = 1\n[connections]\n{connections}\n");
    setup
}

/// Registers machines that are probed, and waits until each was.
async fn with_machines(api: &mut Clients) -> Vec<String> {
    let ids: Vec<String> = (0..MACHINES).map(|number| format!("m-{number}")).collect();
    for id in &ids {
        api.in_service(id).await;
        api.machine_until(id, |machine| is(machine, "BMCReachable")).await;
    }
    ids
}

/// No machine is degraded, and none has ever been.
async fn expect_healthy(api: &mut Clients, ids: &[String]) {
    for id in ids {
        let machine = api.machine(id).await;
        assert!(!is(&machine, "Degraded"), "{machine:#?}");
        assert_eq!(conditions(&machine).get("BMCReachable"), Some(&true), "{machine:#?}");
        for entry in api.history(id).await {
            let words = entry.message.to_ascii_lowercase();
            for symptom in ["open files", "degraded=true", "bmcreachable=false"] {
                assert!(!words.contains(symptom), "{entry:#?}");
            }
        }
    }
}

fn open_files(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

/// The limits of time are long here: only the number of connections is limited.
#[tokio::test(flavor = "multi_thread")]
async fn idle_and_half_open_connections_keep_nobody_out() {
    const DESCRIPTORS: u32 = 256;
    let dir = tempfile::tempdir().unwrap();
    let patient = "first_byte_seconds = 3600\nheader_seconds = 3600\nidle_seconds = 3600";
    let setup = Setup { descriptors: Some(DESCRIPTORS), ..frequent_probes(dir.path(), patient) };
    let server = Server::start(setup);
    let port = server.setup.port;
    let mut api = server.clients().await;
    let ids = with_machines(&mut api).await;
    let mut page = Kept::open(port).await;
    page.get("/healthz").await;

    let mut held = hold("127.0.0.1", port, b"", 150).await;
    held.extend(hold("127.0.0.2", port, HALF_A_HEAD, 150).await);
    held.extend(hold("127.0.0.3", port, &PREFACE[..10], 100).await);
    // Requests that need no caller, and whose body never comes.
    for source in ["127.0.0.4", "127.0.0.5", "127.0.0.6"] {
        held.extend(hold(source, port, &sign_in_without_body(port), 100).await);
    }
    // Watches of another client, each on its own connection.
    let mut watches = Vec::new();
    for id in &ids {
        let mut client = server.clients().await;
        let request =
            v1::WatchRunsRequest { filter: format!("machine_id={id}"), ..Default::default() };
        watches.push((client.runs.watch_runs(request).await.unwrap().into_inner(), client));
        held.extend(hold("127.0.0.1", port, HALF_A_HEAD, 20).await);
    }
    for id in &ids {
        let mut client = server.clients().await;
        client.done(id, "REBOOT", "during").await;
        held.extend(hold("127.0.0.2", port, b"", 20).await);
    }
    for (watch, _) in &mut watches {
        let event = timeout(TEST_TIMEOUT, watch.message()).await.unwrap().unwrap();
        assert!(event.is_some(), "a watch is in use, and was ended");
    }
    grown("farrier_probes_total", (3 * MACHINES) as f64, async || page.get("/metrics").await).await;
    let mut api = server.clients().await;
    expect_healthy(&mut api, &ids).await;
    let files = open_files(&server);
    // Half of them is the reserve; the server's own files come out of it.
    assert!(files < DESCRIPTORS as usize * 3 / 4, "{files} of {DESCRIPTORS} are open");
    assert!(page.metric(&refused("evicted")).await > 0.0);
    assert!(page.metric("farrier_connections_open{listener=\"api\"}").await <= 128.0);
    assert!(!server.log().contains("open files"), "{}", server.log());
    drop(held);
}

/// Descriptors run out in spite of the reserve, which is too small here: the listener survives,
/// and what the server cannot ask is no condition of a machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_shortage_of_descriptors_is_no_condition_of_a_machine() {
    let dir = tempfile::tempdir().unwrap();
    let careless = "reserved_descriptors = 1\nmax_api = 1000\nmax_per_peer = 1000";
    let setup = Setup { descriptors: Some(80), ..frequent_probes(dir.path(), careless) };
    let server = Server::start(setup);
    let port = server.setup.port;
    let mut channel = channel(&server.url()).await;
    let mut api = Clients::on(channel.clone());
    let ids = with_machines(&mut api).await;
    let _watch = api.runs.watch_runs(v1::WatchRunsRequest::default()).await.unwrap();
    let mut page = async || page_beside_a_watch(&mut channel, "/metrics").await;
    let stop = Arc::new(AtomicBool::new(false));
    let pressing = tokio::spawn(press(port, Arc::clone(&stop)));
    grown(&refused("accept-failed"), 2.0, &mut page).await;
    grown("farrier_probes_total", (3 * MACHINES) as f64, &mut page).await;
    grown(&refused("accept-failed"), 1.0, &mut page).await;
    stop.store(true, Ordering::Relaxed);
    pressing.await.unwrap();
    let mut fresh = timeout(TEST_TIMEOUT, server.clients()).await.unwrap();
    // The history would tell of what was believed meanwhile.
    expect_healthy(&mut fresh, &ids).await;
    fresh.done(&ids[0], "REBOOT", "afterwards").await;
    let lines = server.log().lines().filter(|line| line.contains("were not accepted")).count();
    assert!((1..=20).contains(&lines), "{lines} lines about it\n{}", server.log());
}

/// Reads until the server closes the connection; returns what it said before.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    // A reset is an end too.
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut said)).await.expect("it stays open");
    String::from_utf8_lossy(&said).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_use_is_closed_and_a_watch_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "zero");
    setup.config = "[connections]\nfirst_byte_seconds = 1\nheader_seconds = 1\nidle_seconds = 1\n\
                    stall_seconds = 1\n"
        .into();
    let server = Server::start(setup);
    let port = server.setup.port;
    let mut api = server.clients().await;
    api.in_maintenance("m-1").await;
    let request = v1::WatchRunsRequest::default();
    let mut watch = api.runs.watch_runs(request).await.unwrap().into_inner();
    for (bytes, reason) in [
        (b"".as_slice(), "silent"),
        (HALF_A_HEAD, "slow-header"),
        (&PREFACE[..10], "slow-header"),
        // A connection of HTTP/2 without a request.
        (PREFACE, "idle"),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "idle"),
    ] {
        let mut page = Kept::open(port).await;
        let before = page.metric(&refused(reason)).await;
        let mut stream = connect_from("127.0.0.1", port).await;
        stream.write_all(bytes).await.unwrap();
        until_closed(stream).await;
        // The end is counted after the connection is closed.
        let (text, started) = (String::from_utf8_lossy(bytes), Instant::now());
        while Kept::open(port).await.metric(&refused(reason)).await <= before {
            assert!(started.elapsed() < TEST_TIMEOUT, "{text:?} is not counted as {reason}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let mut stream = connect_from("127.0.0.1", port).await;
    stream.write_all(&request_without_body()).await.unwrap();
    until_closed(stream).await;
    // The watch is older than all of them, and nothing has happened on it.
    let run = api.start("m-1", "REBOOT", "late").await;
    loop {
        let event = timeout(TEST_TIMEOUT, watch.message()).await.unwrap().unwrap().unwrap();
        if event.snapshot.is_some_and(|seen| seen.run_id == run.run_id) {
            break;
        }
    }
    server.terminate();
}

#[test]
fn too_few_descriptors_are_refused_with_words() {
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 40 && exec \"$0\" serve --listen 127.0.0.1:0 --data-dir \"$1\""])
        .arg(env!("CARGO_BIN_EXE_farrier"))
        .arg(dir.path())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("may open 40 files") && message.contains("ulimit -n"), "{message}");
}
