//! The deploy agent against a scripted server that breaks connections, refuses, sends wrong data
//! and restarts; and the modules of the crate by themselves.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod accounts;
mod binary;
mod cmdline;
mod confined_fs;
mod console;
mod disk;
mod disk_selector;
mod environment;
mod faults;
mod host_key;
mod http;
mod image;
mod inventory;
mod loop_devices;
mod manifest;
mod outcomes;
mod platform;
mod qcow2;
mod qemu;
mod random;
mod server;
mod status;
mod tar_images;
mod timing;
#[path = "../wire/mod.rs"]
mod wire;
