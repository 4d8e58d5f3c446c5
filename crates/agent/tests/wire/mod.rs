//! A minimal HTTP server for the test binaries of this crate.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub struct Request {
    pub method: String,
    pub path: String,
    pub range: Option<u64>,
    pub bearer: String,
    pub body: Value,
}

pub fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut range, mut bearer) = (0, None, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "range" => range = Some(value.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()?),
            "authorization" => bearer = value.strip_prefix("Bearer ")?.to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Request { method, path, range, bearer, body })
}

pub fn head(mut stream: &TcpStream, status: u16, more: &str, length: usize) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} Word\r\nContent-Length: {length}\r\n{more}\r\n")
}
