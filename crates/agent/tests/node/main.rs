//! The real agent program of a node against a scripted, strict server: it is killed at every
//! request, stopped, kept waiting, and uninstalled.

mod becoming;
mod kinds;
mod leaving;
mod lives;
mod server;
mod stage;
#[path = "../wire/mod.rs"]
mod wire;
