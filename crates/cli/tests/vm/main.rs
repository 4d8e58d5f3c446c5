//! Tests on virtual machines: `cargo xtask test-vm` starts virtual machines behind Redfish
//! emulators and runs these tests one after the other. `cargo test` excludes this program, because
//! it needs that environment.

#[path = "../cli/fleet.rs"]
#[allow(dead_code)]
mod fleet;
mod netboot;
mod reimage;
mod site;
#[path = "../cli/stage.rs"]
#[allow(dead_code)]
mod stage;
