//! Tests of the module `http` alone.

use agent::http::*;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const QUICK: Timeouts =
    Timeouts { connect: Duration::from_secs(5), idle: Duration::from_millis(600) };

/// Answers one request with these bytes, three at a time, and keeps the connection open for
/// `hold`.
fn serve(answer: &'static [u8], hold: Duration) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/x", listener.local_addr().unwrap())).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        for piece in answer.chunks(3) {
            let _ = stream.write_all(piece);
            let _ = stream.flush();
        }
        thread::sleep(hold);
    });
    url
}

fn get(url: &Url) -> io::Result<(u16, Vec<u8>)> {
    let client = Client::new(QUICK, Arc::default());
    let request = Request { method: "GET", url, bearer: None, from: None, json: None };
    let response = client.send(&request)?;
    let status = response.status;
    Ok((status, response.body.read_all(1000, Duration::from_secs(5))?))
}

#[test]
fn bodies_end_by_their_framing() {
    let table: [(&[u8], &[u8]); 5] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more", b"hello"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 204 No\r\n\r\n", b""),
    ];
    for (answer, body) in table {
        assert_eq!(get(&serve(answer, Duration::ZERO)).unwrap().1, body);
    }
}

#[test]
fn broken_connections_are_errors() {
    let hold = Duration::from_secs(3);
    let table: [(&[u8], Duration, ErrorKind); 6] = [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            Duration::ZERO,
            ErrorKind::UnexpectedEof,
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Le", Duration::ZERO, ErrorKind::UnexpectedEof),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
            Duration::ZERO,
            ErrorKind::UnexpectedEof,
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", hold, ErrorKind::TimedOut),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            Duration::ZERO,
            ErrorKind::InvalidData,
        ),
        (b"<html>\r\n\r\n", Duration::ZERO, ErrorKind::InvalidData),
    ];
    for (answer, hold, kind) in table {
        let error = get(&serve(answer, hold)).unwrap_err();
        assert_eq!(error.kind(), kind, "{}: {error}", String::from_utf8_lossy(answer));
    }
}

#[test]
fn stop_flag_interrupts_a_read() {
    let url = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Duration::from_secs(20));
    let stop_flag = Arc::new(AtomicBool::new(false));
    let timeouts = Timeouts { idle: Duration::from_secs(20), ..QUICK };
    let request = Request { method: "GET", url: &url, bearer: None, from: None, json: None };
    let mut response = Client::new(timeouts, stop_flag.clone()).send(&request).unwrap();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        stop_flag.store(true, Ordering::Relaxed);
    });
    let since = Instant::now();
    assert_eq!(response.body.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    assert!(since.elapsed() < Duration::from_secs(10));
}
