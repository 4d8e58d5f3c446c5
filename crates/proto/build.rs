//! Compiles the protos without protoc: protox parses, tonic generates.

use prost::Message;
use std::path::PathBuf;

const FILES: [&str; 26] = [
    "farrier/v1/access.proto",
    "farrier/v1/admin.proto",
    "farrier/v1/approvals.proto",
    "farrier/v1/audit.proto",
    "farrier/v1/clusters.proto",
    "farrier/v1/common.proto",
    "farrier/v1/components.proto",
    "farrier/v1/credentials.proto",
    "farrier/v1/devices.proto",
    "farrier/v1/explain.proto",
    "farrier/v1/firmware.proto",
    "farrier/v1/hardware.proto",
    "farrier/v1/health.proto",
    "farrier/v1/hosts.proto",
    "farrier/v1/images.proto",
    "farrier/v1/machines.proto",
    "farrier/v1/nodes.proto",
    "farrier/v1/notifiers.proto",
    "farrier/v1/operations.proto",
    "farrier/v1/plans.proto",
    "farrier/v1/power_shelves.proto",
    "farrier/v1/racks.proto",
    "farrier/v1/runs.proto",
    "farrier/v1/simulator.proto",
    "farrier/v1/sites.proto",
    "farrier/v1/switches.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::Compiler::new(["proto"])?
        .include_source_info(true)
        .include_imports(true)
        .open_files(FILES)?
        .file_descriptor_set();
    let bytes = descriptors.encode_to_vec();
    std::fs::write(out.join("farrier.bin"), &bytes)?;

    let mut config = prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure().compile_fds_with_config(descriptors, config)?;
    Ok(())
}
