//! Copies of the audit log in a file and at a syslog receiver: nothing is missing in them, whatever
//! is killed, and no request waits for them.

use crate::fleet::{
    Clients, DatabaseKind, Server, Setup, TEST_TIMEOUT, TEST_TOKEN, new_database, postgres,
};
use crate::stage::{farrier, finish};
use crate::unreadable::expect;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// The whole log, in the order of its chain.
fn logged(server: &str) -> BTreeMap<i64, Value> {
    let text = expect(server, "audit --limit 100000 -o jsonl", 0, &[]);
    by_position(json_lines(&text))
}

fn by_position(entries: Vec<Value>) -> BTreeMap<i64, Value> {
    let position = |entry: &Value| entry["position"].as_i64().unwrap();
    entries.into_iter().map(|entry| (position(&entry), entry)).collect()
}

/// Waits until the copy is the log itself, all of it sealed.
fn until_complete(server: &str, copy: impl Fn() -> Vec<Value>) -> usize {
    let started = Instant::now();
    loop {
        let (all, copied) = (logged(server), by_position(copy()));
        if !all.contains_key(&0) && copied == all {
            return all.len();
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{all:#?}\n{copied:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Requests that act, until the server is killed.
async fn act(mut api: Clients, round: u32) {
    for number in 0.. {
        let machine = crate::api::machine(&format!("m-{round}-{number}"));
        if api.try_put(machine).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_nothing_out_of_its_file() {
    killed_in_between(DatabaseKind::Sqlite).await;
    if let Some(cluster) = postgres() {
        killed_in_between(DatabaseKind::Postgres(new_database(&cluster).await)).await;
    }
}

async fn killed_in_between(home: DatabaseKind) {
    let dir = tempfile::tempdir().unwrap();
    let (path, rotated) = (dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1"));
    let config = format!("[audit]\nfile = {path:?}\n");
    let mut setup = Setup { home, config, ..Setup::new(dir.path(), "zero") };
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    for round in 0..4 {
        let server = Server::start(setup);
        let acting = tokio::spawn(act(server.clients().await, round));
        let (before, started) = (text(&path).lines().count(), Instant::now());
        // In the middle of a stream of entries, at a different place in each round.
        while text(&path).lines().count() <= before + 3 * round as usize {
            assert!(started.elapsed() < TEST_TIMEOUT, "nothing is streamed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        setup = server.kill();
        acting.await.unwrap();
        if round == 1 {
            std::fs::rename(&path, &rotated).unwrap();
        }
        if round == 2 {
            // A killed writer may leave an incomplete last line.
            std::fs::write(&path, text(&path) + "{\"accepted\":true,\"at\":\"20").unwrap();
        }
    }
    let server = Server::start(setup);
    let both = || json_lines(&(text(&rotated) + &text(&path)));
    let count = until_complete(&server.url(), both);
    assert!(count > 12, "{count} entries");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let repeated = both().len() - count;
    assert!(repeated <= 4 * 200, "{repeated} of {count} entries were written again");
    expect(&server.url(), "audit verify", 0, &["all as they were written"]);
    expect(&server.url(), "audit status", 0, &["file ", &format!("sent up to {count}\n")]);
}

/// A receiver of RFC 5424 messages over TCP, each with its length in front.
struct Receiver {
    messages: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    /// Serves connections one after the other; drops the first ones after so many messages.
    fn start(listener: TcpListener, dropped_after: &'static [usize]) -> Self {
        let messages: Arc<Mutex<Vec<String>>> = Arc::default();
        let received = Arc::clone(&messages);
        std::thread::spawn(move || {
            let limits = dropped_after.iter().copied().chain(std::iter::repeat(usize::MAX));
            for (stream, limit) in listener.incoming().zip(limits) {
                let mut stream = BufReader::new(stream.unwrap());
                for _ in 0..limit {
                    let Some(message) = read_frame(&mut stream) else { break };
                    received.lock().unwrap().push(message);
                }
            }
        });
        Self { messages }
    }

    fn entries(&self) -> Vec<Value> {
        self.messages.lock().unwrap().iter().map(|message| parse_message(message)).collect()
    }
}

fn read_frame(stream: &mut impl BufRead) -> Option<String> {
    let mut length = Vec::new();
    stream.read_until(b' ', &mut length).ok().filter(|count| *count > 0)?;
    let length: usize = String::from_utf8(length).unwrap().trim().parse().unwrap();
    let mut message = vec![0; length];
    stream.read_exact(&mut message).ok()?;
    Some(String::from_utf8(message).unwrap())
}

/// The entry in a message, whose head must be as RFC 5424 has it.
fn parse_message(message: &str) -> Value {
    let fields: Vec<&str> = message.splitn(8, ' ').collect();
    let [priority, at, _host, app, process, id, data, text] = fields[..] else {
        panic!("{message}");
    };
    let entry: Value = serde_json::from_str(text).unwrap();
    let severity = if entry["accepted"] == true { "<110>1" } else { "<109>1" };
    assert_eq!((priority, app, id, data), (severity, "farrier", "audit", "-"), "{message}");
    assert_eq!(at, entry["at"].as_str().unwrap(), "{message}");
    assert!(process.parse::<u32>().is_ok(), "{message}");
    entry
}

#[tokio::test(flavor = "multi_thread")]
async fn a_syslog_receiver_gets_every_entry_over_broken_connections() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = format!("[audit]\nsyslog = \"tcp://127.0.0.1:{port}\"\n");
    let server = Server::start(Setup { config, ..Setup::new(dir.path(), "zero") });
    let receiver = Receiver::start(listener, &[7, 3, 0]);
    let mut api = server.clients().await;
    for number in 0..20 {
        api.register(&format!("m-{number}")).await;
    }
    // A refused request is a notice.
    let refused = crate::fleet::channel_with(&server.url(), "farrier_pat_unknown").await;
    Clients::on(refused).try_put(crate::api::machine("m-1")).await.unwrap_err();
    let count = until_complete(&server.url(), || receiver.entries());
    let setup = server.kill();
    let server = Server::start(setup);
    server.clients().await.register("m-after").await;
    assert!(until_complete(&server.url(), || receiver.entries()) > count);
    assert!(receiver.entries().iter().any(|entry| entry["accepted"] == false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_datagram_has_one_entry() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let config = format!("[audit]\nsyslog = \"udp://127.0.0.1:{port}\"\n");
    let server = Server::start(Setup { config, ..Setup::new(dir.path(), "zero") });
    server.clients().await.register("m-1").await;
    let mut bytes = vec![0; 65_536];
    loop {
        let length = socket.recv(&mut bytes).unwrap();
        let entry = parse_message(std::str::from_utf8(&bytes[..length]).unwrap());
        if entry["object_ids"][0] == "m-1" {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_is_visible_and_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("later");
    let path = folder.join("audit.jsonl");
    let config = format!("[audit]\nfile = {path:?}\n");
    let server = Server::start(Setup { config, ..Setup::new(dir.path(), "zero") });
    let mut api = server.clients().await;
    // A request does not wait for the stream.
    api.register("m-1").await;
    let url = server.url();
    let started = Instant::now();
    let until_status = |code: i32, word: &str| loop {
        let (ended, text, errors) = finish(farrier(&url, &["audit", "status"]));
        if ended == code && text.contains(word) {
            break text;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{text}{errors}");
    };
    let failing = until_status(1, "waiting");
    assert!(failing.contains("fails since") && failing.contains("No such file"), "{failing}");
    assert!(server.log().contains("the audit log is not streamed"), "{}", server.log());
    let page = metrics(&server);
    let failures = "farrier_audit_stream_failures_total{stream=\"file\"} ";
    assert!(page.lines().any(|line| line.starts_with(failures) && !line.ends_with(" 0")), "{page}");
    std::fs::create_dir(&folder).unwrap();
    let copy = || json_lines(&std::fs::read_to_string(&path).unwrap_or_default());
    until_complete(&url, copy);
    until_status(0, "sent up to");
    let lines = server.log().matches("the audit log is not streamed").count();
    assert!(lines <= 1 + started.elapsed().as_secs() as usize / 60, "{lines} lines");
}

fn metrics(server: &Server) -> String {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.setup.port)).unwrap();
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TEST_TOKEN}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_can_be_followed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let (url, mut api) = (server.url(), server.clients().await);
    api.register("m-before").await;
    let sealed = || logged(&url).values().any(|one| one["object_ids"][0] == "m-before");
    let started = Instant::now();
    while !sealed() || logged(&url).contains_key(&0) {
        assert!(started.elapsed() < TEST_TIMEOUT);
    }
    let words = ["audit", "--follow", "--who", "admin", "-o", "jsonl"];
    let mut follower = farrier(&url, &words);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let mut last = 0;
    let mut until = |id: &str| loop {
        let entry = next();
        let position = entry["position"].as_i64().unwrap();
        assert!(position > last, "{entry}");
        last = position;
        if entry["object_ids"][0] == id {
            return;
        }
    };
    until("m-before");
    for number in 0..5 {
        api.register(&format!("m-{number}")).await;
    }
    until("m-4");
    // It goes on after a restart of the server.
    let server = Server::start(server.kill());
    server.clients().await.register("m-after").await;
    until("m-after");
    follower.kill().unwrap();
    follower.wait().unwrap();
}
