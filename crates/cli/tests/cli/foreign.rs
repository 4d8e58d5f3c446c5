//! A client in another language that knows only the server's address.

use crate::api::TestServer;
use crate::fleet::provided;
use std::process::Command;

/// A Python with grpcio, grpcio-reflection and protobuf.
const PYTHON: &str = "FARRIER_TEST_PYTHON";

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_needs_only_the_address() {
    let Some(python) = provided(PYTHON) else { return };
    let (world, _) = TestServer::open("zero").await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/foreign_client.py");
    let address = format!("127.0.0.1:{}", world.server.setup.port);
    let client = tokio::task::spawn_blocking(move || {
        Command::new(python).args([script, &address]).env("PYTHONDONTWRITEBYTECODE", "1").output()
    });
    let output = client.await.unwrap().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.ends_with("done\n"), "{stdout}");
}
