//! Bodies that are too large or compressed are refused with a clear status, on every listener.

use crate::api::machine;
use crate::fleet::{Server, Setup, TEST_TOKEN, free_port};
use std::io::{Read, Write};
use std::net::TcpStream;
use tonic::Code;

const ENROLL: &str = "/agent/v1/enroll";
const CLAIM: &str = "/deploy/claim";

/// Sends a request and returns the answer. The server may answer and close before it has read all.
fn answer(port: u16, path: &str, headers: &[&str], body: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (headers, length) = (headers.join("\r\n"), body.len());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TEST_TOKEN}\r\n\
         {headers}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).to_ascii_lowercase()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_compressed_calls_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let mut api = server.clients().await;
    let mut large = machine("m-1");
    large.labels.insert("x".into(), "y".repeat(5 * 1024 * 1024));
    let refused = api.try_put(large).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(refused.message().contains("limit"), "{refused}");
    let (port, path) = (server.setup.port, "/farrier.v1.MachineService/GetMachine");
    let grpc = "Content-Type: application/grpc";
    for (headers, body, status, words) in [
        // A length of three gigabytes, of which nothing comes.
        (vec![grpc], [0, 0xC0, 0, 0, 0], "grpc-status: 11", "too%20large"),
        (vec![grpc, "grpc-encoding: gzip"], [1, 0, 0, 0, 0], "grpc-status: 12", "gzip"),
        (vec![grpc], [1, 0, 0, 0, 0], "grpc-status: 13", "compressed"),
    ] {
        let text = answer(port, path, &headers, &body);
        assert!(text.contains(status) && text.contains(words), "{headers:?}: {text}");
    }
    // Requests that need no caller have no room for much.
    let form = ["Content-Type: application/x-www-form-urlencoded", "Sec-Fetch-Site: same-origin"];
    let text = answer(port, "/sign-in", &form, &b"token=x&".repeat(3 * 1024));
    assert!(text.starts_with("http/1.1 413"), "{text}");
    let text = answer(port, "/grpc.health.v1.Health/Check", &[grpc], &[0, 0, 0, 0x20, 0]);
    assert!(text.contains("grpc-status: 11"), "{text}");
    let head = format!("X-Long: {}", "x".repeat(66 * 1024));
    let text = answer(port, path, &[grpc, &head], &[]);
    assert!(text.starts_with("http/1.1 431"), "{text}");
    // The server goes on.
    api.register("m-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_compressed_bodies_of_agents_and_machines_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (agents, netboot, deploy) = (free_port(), free_port(), dir.path());
    for file in ["vmlinuz", "initrd"] {
        std::fs::write(deploy.join(file), "a file").unwrap();
    }
    let mut setup = Setup::new(dir.path(), "zero");
    setup.config = format!(
        "[nodes]\nlisten = \"127.0.0.1:{agents}\"\n[netboot]\nlisten = \"127.0.0.1:{netboot}\"\ndeploy_dir = {deploy:?}\n"
    );
    let _server = Server::start(setup);
    let json = "Content-Type: application/json";
    let large = format!("{{\"token\":\"{}\"}}", "x".repeat(600 * 1024));
    for (port, path) in [(agents, ENROLL), (netboot, CLAIM)] {
        let text = answer(port, path, &[json], large.as_bytes());
        assert!(text.starts_with("http/1.1 413"), "{path}: {}", &text[..text.len().min(300)]);
        let gzip = [json, "Content-Encoding: gzip"];
        let text = answer(port, path, &gzip, &[0x1f, 0x8b, 8, 0]);
        assert!(text.starts_with("http/1.1 415"), "{path}: {text}");
        assert!(text.contains("without compression"), "{path}: {text}");
    }
}
