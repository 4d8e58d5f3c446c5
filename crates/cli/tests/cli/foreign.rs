//! Clients in another language that know only the server's address.

use crate::api::TestServer;
use crate::fleet::provided;
use std::process::Command;

/// A Python with grpcio, grpcio-reflection and protobuf.
const PYTHON: &str = "FARRIER_TEST_PYTHON";

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_needs_only_the_address() {
    run_client("foreign_client.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_makes_every_call() {
    run_client("every_call.py").await;
}

async fn run_client(script: &str) {
    let Some(python) = provided(PYTHON) else { return };
    let (world, _) = TestServer::open("zero").await;
    let script = format!("{}/tests/cli/{script}", env!("CARGO_MANIFEST_DIR"));
    let address = format!("127.0.0.1:{}", world.server.setup.port);
    let client = tokio::task::spawn_blocking(move || {
        Command::new(python)
            .args([&script, &address])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("FARRIER_TOKEN", crate::fleet::TEST_TOKEN)
            .output()
    });
    let output = client.await.unwrap().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.ends_with("done\n"), "{stdout}");
}
