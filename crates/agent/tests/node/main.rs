//! The real agent program of a node against a scripted, strict server: it is killed at every
//! request, stopped, kept waiting, and uninstalled.

mod enrollment;
mod environment;
mod server;
mod task_execution;
mod task_kinds;
mod uninstall;
#[path = "../wire/mod.rs"]
mod wire;
