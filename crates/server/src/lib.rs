//! The doors.
//!
//! Requests come in as proto, are parsed once into the model's values or refused with the field's name,
//! and are handed to the engine. Answers go out the same way. gRPC, metrics and the console share one
//! port. Nothing here touches hardware or decides anything about a machine.

mod agents;
pub mod config;
mod console;
mod demo;
mod grpc;
mod http;
mod netboot;
mod serve;
mod telemetry;

pub use serve::{ServeError, serve};
