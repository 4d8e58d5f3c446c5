//! The deploy agent against a scripted server that breaks connections, refuses, sends wrong data
//! and restarts.

mod binary;
mod faults;
mod loops;
mod qemu;
mod server;
mod stage;
mod tars;
mod verdicts;
#[path = "../wire/mod.rs"]
mod wire;
