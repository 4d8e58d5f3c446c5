//! The API server.
//!
//! Requests arrive as proto messages, are parsed once into the model's values or refused with the
//! name of the field, and are passed to the engine. gRPC, metrics and the console share one port;
//! agents and machines that boot over the network have listeners of their own. Nothing here touches
//! hardware or decides anything about a machine.

mod agents;
mod audit_end;
mod audit_stream;
mod auth;
pub mod config;
mod console;
mod data_dir;
mod database;
mod demo;
mod grpc;
mod http;
mod listener;
mod netboot;
mod oidc;
mod private_files;
mod process_limits;
mod rate_limit;
mod request_guard;
mod seal_key;
mod serve;
mod summed_log;
mod telemetry;
pub mod untrusted;

pub use database::{OfflineDatabase, RecoveredToken};
pub use listener::{PeerAddress, PeerCertificates};
pub use serve::{Listening, ServeError, serve};
