//! A scripted test server: it records requests and injects faults.

use crate::environment::wait_until;
use crate::wire::{head, read_request};
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A fault of one answer.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The connection closes before an answer.
    Close,
    /// The body ends after so many bytes. The request takes effect.
    Cut(usize),
    Status(u16),
    /// No answer for this time, then the connection closes.
    Hang(Duration),
    /// 200 with a body that is not JSON; for an image, one byte differs.
    Garble,
    /// The whole image with 200, like a server without range requests.
    Whole,
}

#[derive(Default)]
pub struct Script {
    pub granted: Value,
    pub image: Vec<u8>,
    /// The body of a refusal.
    pub refusal: Value,
    pub claim_faults: VecDeque<Fault>,
    pub image_faults: VecDeque<Fault>,
    pub report_faults: VecDeque<Fault>,
    /// The answer to a report, by its stage. Default: `go-on`.
    pub then: BTreeMap<&'static str, &'static str>,
    /// Bytes per chunk and the pause after each, so that a test can act meanwhile.
    pub slow: Option<(usize, Duration)>,
    pub chunked: bool,
    /// Changes the signed reply to a claim on its way.
    pub alter: Option<fn(&mut Value)>,
}

/// The recorded requests.
#[derive(Default)]
pub struct RecordedRequests {
    pub claims: Vec<Value>,
    pub reports: Vec<Value>,
    /// The first byte of each request for the image.
    pub ranges: Vec<u64>,
    pub bearers: Vec<String>,
}

pub struct Server {
    pub address: SocketAddr,
    pub script: Arc<Mutex<Script>>,
    pub heard: Arc<Mutex<RecordedRequests>>,
    up: Option<Arc<AtomicBool>>,
}

impl Server {
    pub fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut server =
            Self { address, script: Arc::new(Mutex::new(script)), heard: Arc::default(), up: None };
        server.listen(listener);
        server
    }

    fn listen(&mut self, listener: TcpListener) {
        let up = Arc::new(AtomicBool::new(true));
        self.up = Some(up.clone());
        let (script, heartbeat) = (self.script.clone(), self.heard.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if !up.load(Ordering::SeqCst) {
                    return;
                }
                let (script, heartbeat, up) = (script.clone(), heartbeat.clone(), up.clone());
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let _ = answer(&stream, &script, &heartbeat, &up);
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
    }

    /// Acts like a killed process: connections break, and the port is closed.
    pub fn kill(&mut self) {
        if let Some(up) = self.up.take() {
            up.store(false, Ordering::SeqCst);
            // Wakes the listening thread, so that it ends.
            let _ = TcpStream::connect(self.address);
        }
    }

    pub fn restart(&mut self) {
        let mut listener = None;
        wait_until("a port that is free again", || {
            listener = TcpListener::bind(self.address).ok();
            listener.is_some()
        });
        self.listen(listener.expect("it was waited for"));
    }

    pub fn stages(&self) -> Vec<String> {
        let mut stages: Vec<String> = self
            .heard
            .lock()
            .unwrap()
            .reports
            .iter()
            .map(|r| r["stage"].as_str().unwrap().into())
            .collect();
        stages.dedup();
        stages
    }

    pub fn last_report(&self) -> Value {
        self.heard.lock().unwrap().reports.last().cloned().unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn answer(
    stream: &TcpStream,
    script: &Mutex<Script>,
    heartbeat: &Mutex<RecordedRequests>,
    up: &AtomicBool,
) -> std::io::Result<()> {
    let Some(request) = read_request(stream) else { return Ok(()) };
    let mut heartbeat = heartbeat.lock().unwrap();
    let mut script = script.lock().unwrap();
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/deploy/claim") => {
            let fault = script.claim_faults.pop_front();
            let mut reply = sign(&script.granted, &request.body);
            if let Some(alter) = script.alter {
                alter(&mut reply);
            }
            let refusal = script.refusal.clone();
            heartbeat.claims.push(request.body);
            drop((heartbeat, script));
            json_answer(stream, fault, &reply, &refusal)
        }
        ("POST", "/deploy/report") => {
            let stage = request.body["stage"].as_str().unwrap_or_default().to_owned();
            heartbeat.bearers.push(request.bearer);
            let fault = script.report_faults.pop_front();
            if !matches!(fault, Some(Fault::Close | Fault::Status(_) | Fault::Hang(_))) {
                heartbeat.reports.push(request.body);
            }
            let then = script.then.get(stage.as_str()).copied().unwrap_or("go-on");
            let refusal = script.refusal.clone();
            drop((heartbeat, script));
            json_answer(stream, fault, &json!({ "then": then }), &refusal)
        }
        ("GET", "/deploy/image") => {
            heartbeat.bearers.push(request.bearer);
            let from = request.range.expect("the agent always asks for a range");
            heartbeat.ranges.push(from);
            let fault = script.image_faults.pop_front();
            let sending = Sending {
                image: script.image.clone(),
                from: from as usize,
                slow: script.slow,
                chunked: script.chunked,
                refusal: script.refusal.clone(),
            };
            drop((heartbeat, script));
            image_answer(stream, fault, sending, up)
        }
        _ => head(stream, 404, "", 0),
    }
}

/// The reply to a claim, signed as Farrier signs it.
pub fn sign(granted: &Value, claim: &Value) -> Value {
    let key = SigningKey::from_bytes(&[7; 32]);
    let session = crate::environment::sha256(claim["session"].as_str().unwrap().as_bytes());
    let macs = json!([claim["mac"]]);
    let manifest = json!({ "assignment": granted, "session": session, "macs": macs }).to_string();
    let message = format!("{}{manifest}", ::wire::deploy::MANIFEST_CONTEXT);
    let signature: String =
        key.sign(message.as_bytes()).to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut reply = granted.clone();
    reply["manifest"] = json!(manifest);
    reply["signature"] = json!(signature);
    reply
}

fn json_answer(
    mut stream: &TcpStream,
    fault: Option<Fault>,
    good: &Value,
    refusal: &Value,
) -> std::io::Result<()> {
    let text = good.to_string();
    match fault {
        Some(Fault::Close) => Ok(()),
        Some(Fault::Hang(time)) => {
            thread::sleep(time);
            Ok(())
        }
        Some(Fault::Status(status)) => {
            let text = refusal.to_string();
            head(stream, status, "", text.len())?;
            stream.write_all(text.as_bytes())
        }
        Some(Fault::Garble) => {
            head(stream, 200, "", 6)?;
            stream.write_all(b"<html>")
        }
        Some(Fault::Cut(bytes)) => {
            head(stream, 200, "", text.len())?;
            stream.write_all(&text.as_bytes()[..bytes.min(text.len() - 1)])
        }
        Some(Fault::Whole) | None => {
            head(stream, 200, "", text.len())?;
            stream.write_all(text.as_bytes())
        }
    }
}

struct Sending {
    image: Vec<u8>,
    from: usize,
    slow: Option<(usize, Duration)>,
    chunked: bool,
    refusal: Value,
}

fn image_answer(
    mut stream: &TcpStream,
    fault: Option<Fault>,
    sending: Sending,
    up: &AtomicBool,
) -> std::io::Result<()> {
    let Sending { mut image, from, slow, chunked, refusal } = sending;
    let total = image.len();
    let mut most = total - from;
    match fault {
        Some(Fault::Close) => return Ok(()),
        Some(Fault::Hang(time)) => {
            thread::sleep(time);
            return Ok(());
        }
        Some(Fault::Status(status)) => {
            let text = refusal.to_string();
            head(stream, status, "", text.len())?;
            return stream.write_all(text.as_bytes());
        }
        Some(Fault::Whole) => {
            head(stream, 200, "", total)?;
            return stream.write_all(&image);
        }
        Some(Fault::Cut(bytes)) => most = bytes.min(most),
        Some(Fault::Garble) => image[from] ^= 1,
        None => {}
    }
    let framing = if chunked {
        "Transfer-Encoding: chunked".into()
    } else {
        format!("Content-Length: {}", total - from)
    };
    write!(
        stream,
        "HTTP/1.1 206 Word\r\nContent-Range: bytes {from}-{}/{total}\r\n{framing}\r\n\r\n",
        total.max(1) - 1
    )?;
    let (piece, pause) = slow.unwrap_or((64 * 1024, Duration::ZERO));
    for bytes in image[from..from + most].chunks(piece) {
        if !up.load(Ordering::SeqCst) {
            return Ok(());
        }
        if chunked {
            write!(stream, "{:x}\r\n", bytes.len())?;
        }
        stream.write_all(bytes)?;
        if chunked {
            stream.write_all(b"\r\n")?;
        }
        thread::sleep(pause);
    }
    if chunked && most == total - from {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(())
}
