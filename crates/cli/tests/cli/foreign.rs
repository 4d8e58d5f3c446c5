//! A client in another language that knows only the server's address.

use crate::api::World;
use std::process::Command;

/// A Python with grpcio, grpcio-reflection and protobuf. Without it the test is skipped; on CI that
/// is a failure.
fn python() -> Option<String> {
    match std::env::var("FARRIER_TEST_PYTHON") {
        Ok(python) => Some(python),
        Err(_) if std::env::var_os("CI").is_some() => panic!("FARRIER_TEST_PYTHON is not set"),
        Err(_) => {
            eprintln!("the foreign client is left out; `cargo xtask test` brings it");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_needs_the_address_only() {
    let Some(python) = python() else { return };
    let (world, _) = World::open("zero").await;
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
