//! Contexts: what `farrier serve` writes for the next command, and where tokens are sent.

use crate::access::farrier;
use crate::fleet::{NO_CONTEXTS, Server, Setup, TEST_TOKEN};
use crate::pki::{Authority, Usage};
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// An address that is not loopback, and leads to this host all the same.
fn not_loopback(port: u16) -> String {
    format!("http://0.0.0.0:{port}")
}

#[test]
fn a_token_is_not_sent_in_the_clear() {
    let dir = tempfile::tempdir().unwrap();
    let sink = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = not_loopback(sink.local_addr().unwrap().port());
    let file = dir.path().join("the.token");
    std::fs::write(&file, TEST_TOKEN).unwrap();
    let token_file = file.to_str().unwrap();
    let bare = [("FARRIER_CONTEXTS", NO_CONTEXTS)];
    let known = [("FARRIER_TOKEN", TEST_TOKEN), ("FARRIER_CONTEXTS", NO_CONTEXTS)];
    for (args, variables) in [
        (vec!["--server", &address, "list"], &known[..]),
        (vec!["--server", &address, "--token-file", token_file, "list"], &bare),
        (vec!["--server", &address, "reboot", "m-1", "--dry-run"], &known),
        (vec!["login", &address, "--token-file", token_file], &bare),
    ] {
        let (code, out, err) = farrier(&args, variables);
        assert_eq!(code, 2, "{args:?}: {out}{err}");
        for word in ["without TLS", &address, "write https://", "--insecure"] {
            assert!(err.contains(word), "{args:?}: {err}");
        }
    }
    sink.set_nonblocking(true).unwrap();
    assert_eq!(sink.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "it was connected to");
    sink.set_nonblocking(false).unwrap();
    // Without a token there is nothing to protect, and with the flag it is sent.
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    command.args(["--server", &address, "--insecure", "list"]).env("FARRIER_TOKEN", TEST_TOKEN);
    let mut child = command.env("FARRIER_CONTEXTS", NO_CONTEXTS).spawn().unwrap();
    let (mut stream, _) = sink.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(stream.read(&mut [0; 1]).unwrap() > 0);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_context_remembers_that_it_is_insecure() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let address = not_loopback(server.setup.port);
    let file = dir.path().join("contexts.toml");
    let contexts = file.to_str().unwrap();
    let login = ["login", &address, "--name", "lab", "--insecure"];
    let token = [("FARRIER_TOKEN", TEST_TOKEN), ("FARRIER_CONTEXTS", contexts)];
    let (code, out, err) = farrier(&login, &token);
    assert_eq!(code, 0, "{out}{err}");
    let known = [("FARRIER_CONTEXTS", contexts)];
    let (code, out, err) = farrier(&["whoami"], &known);
    assert_eq!(code, 0, "{out}{err}");
    // It says so for its own server only.
    let other = "http://0.0.0.0:9";
    let (code, _, err) = farrier(&["--context", "lab", "--server", other, "whoami"], &token);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("without TLS"), "{err}");
}

/// Starts a server with this certificate. Returns what the next command without options says.
fn next_command(dir: &Path, certificate: &Path, key: &Path) -> (i32, String, String) {
    let mut setup = Setup::new(dir, "zero");
    setup.config = format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n");
    let server = Server::start(setup);
    let contexts = server.setup.dir.join("contexts.toml");
    let (code, out, err) = farrier(&["list"], &[("FARRIER_CONTEXTS", contexts.to_str().unwrap())]);
    (code, out + &err, std::fs::read_to_string(contexts).unwrap())
}

#[test]
fn the_local_context_knows_the_authority_of_tls_init() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("tls");
    let (code, out, err) = farrier(&["tls", "init", place.to_str().unwrap()], &[]);
    assert_eq!(code, 0, "{out}{err}");
    let (certificate, key) = (place.join("server.pem"), place.join("server.key"));
    let (code, said, contexts) = next_command(dir.path(), &certificate, &key);
    assert_eq!(code, 0, "{said}");
    assert!(contexts.contains("https://127.0.0.1") && contexts.contains("ca.pem"), "{contexts}");
}

/// A file of that name may belong to another authority: then the authorities of the host count.
#[test]
fn the_local_context_names_no_other_authority() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new("foreign").write(&dir.path().join("ca.pem"));
    let names = (Usage::Server, ["127.0.0.1"].as_slice(), 1);
    let files = Authority::new("servers").issue(dir.path(), "server", names);
    let (code, said, contexts) = next_command(dir.path(), &files.certificate, &files.key);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("pass --server-ca FILE"), "{said}");
    assert!(!contexts.contains("server_ca"), "{contexts}");
}
