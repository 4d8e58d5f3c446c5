//! The providers against software that nobody here wrote, or, where none can be had, against a strict server of the
//! tests' own. A peer is found by an environment variable that `cargo xtask test` sets.

mod ipmi_sim;
mod kube_api;
mod kube_pki;
mod kubernetes;

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
