//! The API server.
//!
//! Requests arrive as proto messages, are parsed once into the model's values or refused with the
//! name of the field, and are passed to the engine. gRPC, metrics and the console share one port;
//! agents and machines that boot over the network have listeners of their own. Nothing here touches
//! hardware or decides anything about a machine.

mod agents;
pub mod config;
mod console;
mod database;
mod demo;
mod grpc;
mod http;
mod netboot;
mod request_guard;
mod serve;
mod telemetry;

pub use database::OfflineDatabase;
pub use serve::{ServeError, serve};
