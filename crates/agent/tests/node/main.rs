//! The agent of a node, as the real program, against a Farrier that is scripted and strict: it is killed at every request, told to stop, kept
//! waiting, and told to go.

mod becoming;
mod kinds;
mod leaving;
mod lives;
mod server;
mod stage;
#[path = "../wire/mod.rs"]
mod wire;
