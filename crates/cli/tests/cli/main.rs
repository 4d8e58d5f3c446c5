//! The real binary, from outside: against a scripted server, and as a server with real clients.

mod crash;
mod fleet;
mod replicas;
mod scripted;
mod stage;
