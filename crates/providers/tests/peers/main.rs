//! The providers against peers that speak the real protocols: third-party software where it is
//! available, and small strict fakes for failures. A peer's program is found by an environment
//! variable that `cargo xtask test` sets.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod bmc_discovery;
mod certs;
mod clusters;
mod crash_fixture;
mod crash_injector;
mod crash_matrix;
mod datacenter;
mod datacenter_fixture;
mod fake_bmc;
mod fake_updater;
mod firmware;
mod http;
mod imaging;
mod inspection;
mod ipmi_sim;
mod jobs;
mod joins;
mod kube_access;
mod kube_api;
mod kube_pki;
mod kube_schema;
mod kubernetes;
mod logins;
mod maas;
mod maas_answers;
mod maas_api;
mod maas_crash_matrix;
mod maas_faults;
mod maas_fixture;
mod maas_machines;
mod maas_restarts;
mod maas_stages;
mod network;
mod nodes;
mod power;
mod power_shelves;
mod probes;
mod redfish_change;
mod redfish_choice;
mod redfish_faults;
mod redfish_identity;
mod redfish_read;
mod sshd;
mod sushy;
mod switches;
mod webhooks;

use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Polls until the condition holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < DEADLINE, "timed out waiting until {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Skips a test when this computer lacks something. On CI that fails: a skipped test proves
/// nothing.
fn skip(missing: &str) {
    assert!(std::env::var_os("CI").is_none(), "this is CI, and {missing}");
    eprintln!("skipped: {missing}");
}

/// The path of a peer's program. None skips the test.
fn peer(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        skip(&format!("{variable} is not set; `cargo xtask test` sets it"));
    }
    path
}

/// A port on loopback for a peer that starts later, given out once. It is outside the range of
/// ephemeral ports (32768 and above on Linux).
fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static GIVEN_OUT: AtomicU32 = AtomicU32::new(0);
    let free = |port: &u16| {
        let address = ("127.0.0.1", *port);
        TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
    };
    // Test programs that run at the same time begin at different ports.
    let begin = std::process::id().wrapping_mul(613);
    let next = || {
        let offset = begin.wrapping_add(GIVEN_OUT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        u16::try_from(FIRST + offset).unwrap()
    };
    (0..COUNT).map(|_| next()).find(free).expect("a free port on loopback")
}
