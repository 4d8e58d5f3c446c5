//! The deploy agent against a scripted server that breaks connections, refuses, sends wrong data
//! and restarts.

mod binary;
mod environment;
mod faults;
mod loop_devices;
mod outcomes;
mod qemu;
mod server;
mod tar_images;
#[path = "../wire/mod.rs"]
mod wire;
