//! The attack of a foreign page in a real browser that is signed in to the console.
//!
//! The page comes from another site, from another port of the server's own address (the browser
//! sends the session cookie then), and from a name that leads to the server's address. It must
//! neither act nor read. `cargo xtask soak` runs this; by hand:
//! `FARRIER_TEST_CHROMIUM=$(which chromium) cargo test -p farrier --test soak browser`.

use crate::api::TestServer;
use crate::fleet::{TEST_TIMEOUT, TEST_TOKEN};
use crate::stage::{farrier, finish};
use proto::v1::access_service_client::AccessServiceClient;
use proto::{Message, v1};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const SCRIPT: &str = include_str!("browser_attack.js");
/// A name that the browser resolves to loopback.
const REBOUND: &str = "evil.example";

/// A browser without a window, and its own empty profile.
struct Browser {
    child: Child,
    /// The port of its debugger.
    port: u16,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start(program: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let child = Command::new(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--disable-dev-shm-usage", "--remote-debugging-port=0"])
            .arg(format!("--host-resolver-rules=MAP {REBOUND} 127.0.0.1"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut browser = Self { child, port: 0, _profile: profile };
        browser.port = debugger_port(browser._profile.path());
        browser
    }

    /// Asks the debugger.
    fn ask(&self, request: &str) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            .unwrap();
        let (_, body) = read_message(&mut BufReader::new(stream));
        serde_json::from_slice(&body).unwrap_or(Value::Null)
    }

    fn open(&self, url: &str) {
        self.ask(&format!("PUT /json/new?{url}"));
    }

    /// Waits for a tab whose URL and title fit.
    fn until_tab(&self, url: &str, title: &str) {
        let started = Instant::now();
        loop {
            let tabs = self.ask("GET /json/list");
            let fits = |tab: &Value| {
                let title_of = tab["title"].as_str().unwrap_or_default();
                tab["url"] == url && title_of.contains(title)
            };
            if tabs.as_array().is_some_and(|tabs| tabs.iter().any(fits)) {
                return;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "no tab {url} {title:?}: {tabs:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn debugger_port(profile: &Path) -> u16 {
    let started = Instant::now();
    loop {
        let text = std::fs::read_to_string(profile.join("DevToolsActivePort")).unwrap_or_default();
        if let Some(port) = text.lines().next().and_then(|line| line.parse().ok()) {
            return port;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "the browser does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The first line of a request or an answer, and its body.
fn read_message(stream: &mut impl BufRead) -> (String, Vec<u8>) {
    let (mut first, mut length) = (String::new(), 0);
    stream.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (first, body)
}

/// The attacker's server: it serves the page and receives what the page saw.
fn serve_attack(call: Vec<u8>) -> (u16, Receiver<BTreeMap<String, String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (first, body) = read_message(&mut stream);
            let target = first.split(['?', ' ']).nth(2).unwrap_or_default();
            let page = match first.starts_with("POST /done ") {
                true => {
                    sender.send(serde_json::from_slice(&body).unwrap()).unwrap();
                    String::new()
                }
                false => format!(
                    "<!doctype html><body><script>const TARGET = {target:?};\n\
                     const BODY = {call:?};\n{SCRIPT}</script>"
                ),
            };
            let length = page.len();
            let _ = write!(
                stream.get_mut(),
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\
                 Connection: close\r\n\r\n{page}"
            );
        }
    });
    (port, receiver)
}

/// The attempts and what the page may see of each: nothing. An opaque answer has no content.
fn check_results(page: &str, results: &BTreeMap<String, String>) {
    let expected = [
        ("text/plain without CORS", "opaque "),
        ("text/plain with CORS", "error"),
        ("application/grpc with CORS", "error"),
        ("form type without CORS", "opaque "),
        ("beacon", "true"),
        ("form to the API", "answered"),
        ("form to sign-out", "answered"),
        ("read with CORS", "error"),
        ("read without CORS", "opaque "),
        ("image", "error"),
        ("script", "error"),
        ("web socket", "error"),
        ("event source", "error"),
    ];
    let expected: BTreeMap<String, String> =
        expected.iter().map(|(name, seen)| (name.to_string(), seen.to_string())).collect();
    assert_eq!(results, &expected, "{page}");
}

/// Sends a request of a proper client. Returns the answer.
fn http(env: &TestServer, request: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", env.server.setup.port)).unwrap();
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TEST_TOKEN}\r\n\
         Content-Type: application/grpc\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The number of requests that the server has refused before they reached a route.
fn refused(env: &TestServer) -> f64 {
    let page = http(env, "GET /metrics", &[]);
    let is_refusal = |line: &&str| {
        ["403", "415", "421"].iter().any(|status| {
            line.starts_with(&format!(
                "farrier_requests_total{{path=\"http\",status=\"{status}\"}} "
            ))
        })
    };
    let values = page.lines().filter(is_refusal).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_in_a_signed_in_browser_can_neither_act_nor_read() {
    let program = std::env::var("FARRIER_TEST_CHROMIUM").expect("FARRIER_TEST_CHROMIUM");
    let (env, mut api) = TestServer::open("zero").await;
    api.in_maintenance("m-1").await;
    let port = env.server.setup.port;
    let here = format!("http://127.0.0.1:{port}");
    let call = framed(&v1::ReimageMachineRequest {
        machine_id: "m-1".into(),
        request_id: "from-a-page".into(),
        image_ref: "ubuntu-2204".into(),
        ..Default::default()
    });
    let browser = Browser::start(&program);
    let mut access = AccessServiceClient::new(crate::fleet::channel(&here).await);
    let link = access.create_sign_in_link(v1::CreateSignInLinkRequest::default()).await.unwrap();
    browser.open(&format!("{here}{}", link.into_inner().path));
    browser.until_tab(&format!("{here}/"), "");
    let accepted = || {
        let (code, lines, errors) = finish(farrier(&here, &["audit", "-o", "jsonl"]));
        assert_eq!(code, 0, "{errors}");
        lines.matches("\"accepted\":true").count()
    };
    let acted_before = accepted();
    let (attacker, seen) = serve_attack(call.clone());
    for (page, target) in [
        (format!("http://localhost:{attacker}/"), here.clone()),
        // The same site on another port: the browser sends the cookie.
        (format!("http://127.0.0.1:{attacker}/"), here.clone()),
        (format!("http://{REBOUND}:{attacker}/"), format!("http://{REBOUND}:{port}")),
    ] {
        let before = refused(&env);
        browser.open(&format!("{page}?{target}"));
        let results = seen.recv_timeout(TEST_TIMEOUT).expect("the page reports");
        check_results(&page, &results);
        // The attempts have arrived: it is the server that refused them.
        let arrived = refused(&env) - before;
        assert!(arrived >= 9.0, "{page}: {arrived} requests were refused by the server");
    }
    assert!(api.list_runs("type=REIMAGE").await.is_empty(), "a page started an operation");
    assert_eq!(accepted(), acted_before, "a page acted");
    // The browser is still signed in: no page has signed it out.
    browser.open(&format!("{here}/machines/m-1"));
    browser.until_tab(&format!("{here}/machines/m-1"), "m-1");
    // The same request from a client acts.
    http(&env, "POST /farrier.v1.MachineService/ReimageMachine", &call);
    assert_eq!(api.list_runs("type=REIMAGE").await.len(), 1);
    assert_eq!(accepted(), acted_before + 1);
}

/// A request as gRPC frames it: no compression, the length, the message.
fn framed(request: &impl Message) -> Vec<u8> {
    let body = request.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &body].concat()
}
