//! The agent against a Farrier that is scripted: it breaks off, refuses, lies and comes back.

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
