//! The wire format: `farrier.v1`, its generated code, and the descriptor set that reflection
//! serves. No rules live here; `server` converts these types to and from the model's.

/// The package `farrier.v1`, with gRPC clients and servers.
#[allow(
    clippy::all,
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "the code is generated"
)]
pub mod v1 {
    tonic::include_proto!("farrier.v1");
}

pub mod calls;
pub mod field_mask;
pub mod json_form;
pub mod words;

pub use prost::{Message, Name};
pub use prost_types::{FieldMask, FileDescriptorProto, Timestamp};

/// The compiled descriptors of every proto file, with their comments.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/farrier.bin"));
