//! The providers against peers that speak the real protocols: software that nobody here wrote where it can be had, small
//! and strict ones of the tests' own for what goes wrong. A peer is found by an environment variable that `cargo xtask
//! test` sets.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod certs;
mod datacenter;
mod desk;
mod firmware;
mod http;
mod imaging;
mod ipmi_sim;
mod jobs;
mod kube_api;
mod kube_pki;
mod kubernetes;
mod logins;
mod looks;
mod maas;
mod maas_api;
mod maas_desk;
mod maas_faults;
mod maas_lives;
mod maas_machines;
mod maas_stages;
mod matrix;
mod network;
mod nodes;
mod power;
mod probes;
mod reaper;
mod redfish_change;
mod redfish_choice;
mod redfish_faults;
mod redfish_identity;
mod redfish_read;
mod scouting;
mod shelves;
mod sites;
mod sshd;
mod sushy;
mod switches;
mod updater;
mod world;

use std::path::PathBuf;

/// Where a peer's program is. Without it the test is left out with a word; on CI that is a failure, because a test
/// that silently stops being run there would be noticed by nobody.
fn peer(variable: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(PathBuf::from(path));
    }
    assert!(std::env::var_os("CI").is_none(), "{variable} is not set, and this is CI");
    eprintln!("skipped: {variable} is not set; `cargo xtask test` sets it");
    None
}
