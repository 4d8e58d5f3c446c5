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

/// The file of the simulator's service. No other file needs it.
const SIMULATOR_FILE: &str = "farrier/v1/simulator.proto";

/// The descriptors for a server that has no simulated hardware.
pub fn descriptors_without_simulator() -> Vec<u8> {
    let mut set = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default();
    set.file.retain(|file| file.name() != SIMULATOR_FILE);
    set.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::FileDescriptorSet;

    #[test]
    fn the_simulator_is_one_file_that_no_other_imports() {
        let all = FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
        let rest = FileDescriptorSet::decode(&*descriptors_without_simulator()).unwrap().file;
        assert_eq!(rest.len() + 1, all.len());
        assert!(rest.iter().all(|file| !file.dependency.iter().any(|one| one == SIMULATOR_FILE)));
        assert!(
            rest.iter().flat_map(|file| &file.service).all(|one| one.name() != "SimulatorService")
        );
    }
}
