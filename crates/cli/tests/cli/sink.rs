//! A peer of the tests that records every byte it gets, over TCP and UDP on one port of loopback.
//! It speaks enough HTTP and SSH to make a client go on to its login.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The service root of a BMC without sessions, so that a client logs in with every request.
const ROOT: &str = r#"{"@odata.id":"/redfish/v1","RedfishVersion":"1.6.0","Systems":{"@odata.id":"/redfish/v1/Systems"}}"#;
/// A client that sends nothing more is done.
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Recording {
    bytes: Vec<u8>,
    connections: usize,
    datagrams: usize,
}

/// A listening sink. Its threads end with the test program.
pub struct Sink {
    pub port: u16,
    recorded: Arc<Mutex<Recording>>,
}

impl Sink {
    pub fn start() -> Self {
        Self::redirecting("")
    }

    /// A sink that sends every request for a protected path to another server.
    pub fn redirecting(target: &str) -> Self {
        let (tcp, udp) = bound();
        let port = tcp.local_addr().unwrap().port();
        let recorded: Arc<Mutex<Recording>> = Arc::default();
        let (record, target) = (Arc::clone(&recorded), target.to_string());
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let (record, target) = (Arc::clone(&record), target.clone());
                record.lock().unwrap().connections += 1;
                thread::spawn(move || answer(stream, &record, &target));
            }
        });
        let record = Arc::clone(&recorded);
        thread::spawn(move || {
            let mut packet = [0; 2_048];
            while let Ok((length, _)) = udp.recv_from(&mut packet) {
                let mut record = record.lock().unwrap();
                record.datagrams += 1;
                record.bytes.extend(&packet[..length]);
            }
        });
        Self { port, recorded }
    }

    /// True if the secret arrived: as it is, or as part of a login with basic authentication.
    pub fn saw(&self, user: &str, secret: &str) -> bool {
        let basic = BASE64_STANDARD.encode(format!("{user}:{secret}"));
        let bytes = &self.recorded.lock().unwrap().bytes;
        [secret.as_bytes(), basic.as_bytes()]
            .iter()
            .any(|form| bytes.windows(form.len()).any(|part| part == *form))
    }

    /// Connections and datagrams.
    pub fn contacts(&self) -> (usize, usize) {
        let recorded = self.recorded.lock().unwrap();
        (recorded.connections, recorded.datagrams)
    }

    pub fn saw_bytes(&self, expected: &[u8]) -> bool {
        let bytes = &self.recorded.lock().unwrap().bytes;
        bytes.windows(expected.len()).any(|part| part == expected)
    }
}

/// A port that is free for both protocols.
fn bound() -> (TcpListener, UdpSocket) {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            return (tcp, udp);
        }
    }
}

fn answer(mut stream: TcpStream, record: &Mutex<Recording>, target: &str) {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let (mut request, mut buffer) = (Vec::new(), [0; 4_096]);
    let mut greeted = false;
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        record.lock().unwrap().bytes.extend(&buffer[..length]);
        request.extend(&buffer[..length]);
        if request.starts_with(b"SSH-") {
            if !greeted {
                let _ = stream.write_all(b"SSH-2.0-sink\r\n");
                greeted = true;
            }
            continue;
        }
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            let _ = stream.write_all(response(&request, target).as_bytes());
            request.clear();
        }
    }
}

fn response(request: &[u8], target: &str) -> String {
    let line = String::from_utf8_lossy(request);
    let path = line.split(' ').nth(1).unwrap_or_default().trim_end_matches('/');
    if path == "/redfish/v1" {
        let length = ROOT.len();
        return format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{ROOT}"
        );
    }
    if target.is_empty() {
        return "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n".into();
    }
    format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: {target}{path}\r\nContent-Length: 0\r\n\r\n"
    )
}
