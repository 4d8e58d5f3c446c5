//! A tar of a root file system: partitions the disk, unpacks the files, and installs boot loaders.
//!
//! There are two partitions: one for the firmware, which both BIOS and UEFI boot from, and one for
//! everything else. Nothing is bootable before the checksum has been verified.

mod boot;
pub mod decompress;
mod layout;

use crate::disk::{DiskWriter, MIB};
use crate::disk_selector::check_disk_size;
use crate::failure::{DeployError, Failure};
use crate::image::ImageStream;
use crate::install::{InstallTarget, MountableVolume};
use crate::inventory;
use crate::platform::{FeedError, Tool};
use crate::volume::FileSystem;
use layout::Layout;
use std::path::Path;
use wire::deploy::{DeploymentFailure, Image};

/// The overhead of the file system, in addition to the files.
const OVERHEAD_BYTES: u64 = 64 * MIB;

/// A disk with partitions and file systems, ready for the files.
pub struct PreparedDisk {
    layout: Layout,
    firmware: MountableVolume,
    root: MountableVolume,
}

/// Checks the minimum size. The size of the unpacked files is only known afterwards.
pub fn check_size(target: &InstallTarget, image: &Image) -> Result<(), Failure> {
    let needed = layout::FIRMWARE_BYTES + image.size + OVERHEAD_BYTES;
    check_disk_size(target.disk, needed, &format!("{} with what it boots from", image.name))
}

/// Creates the partitions and their file systems.
pub fn prepare_disk(target: &InstallTarget) -> Result<PreparedDisk, Failure> {
    // Only clears the ends; the disk must not be open while it is partitioned.
    DiskWriter::open(&target.device(), &target.disk.path, target.disk.size)?
        .clear_partition_tables()?;
    let layout = Layout::new().map_err(Failure::install_failed)?;
    let device = target.device();
    let run = |tool: Tool, arguments: &[&str], input: &str| {
        let failed = |message| {
            Failure::install_failed(format!("{} cannot be prepared: {message}", target.disk.path))
        };
        target.platform.run(tool, arguments, input).map_err(failed)
    };
    let arguments = ["--quiet", "--wipe", "always", "--wipe-partitions", "always", &text(&device)];
    run(Tool::Sfdisk, &arguments, &layout.script())?;
    target.reread_partitions()?;
    let partitions = inventory::list_partitions(target.root, &target.disk.name);
    let [firmware, root] = partitions.as_slice() else {
        return Err(Failure::install_failed(format!(
            "{} was given 2 partitions, and the kernel sees {}",
            target.disk.path,
            partitions.len()
        )));
    };
    run(Tool::MkfsVfat, &["-F", "32", "-n", "FIRMWARE", &text(firmware)], "")?;
    run(Tool::MkfsExt4, &["-q", "-F", "-L", "root", &text(root)], "")?;
    let volume =
        |device: &Path, kind| MountableVolume { device: device.to_path_buf(), kind, options: "" };
    Ok(PreparedDisk {
        layout,
        firmware: volume(firmware, FileSystem::Vfat),
        root: volume(root, FileSystem::Ext4),
    })
}

impl PreparedDisk {
    /// Unpacks the files as they arrive.
    pub fn unpack(
        &self,
        stream: &mut ImageStream,
        target: &InstallTarget,
    ) -> Result<(), DeployError> {
        target.with_mounted(&self.root, "root", |at| feed_tar(stream, target, at))?
    }

    /// Makes the disk bootable, after the checksum has been verified.
    pub fn make_bootable(
        &self,
        target: &InstallTarget,
        consoles: &[String],
    ) -> Result<(), Failure> {
        target.with_mounted(&self.root, "root", |root| {
            target.with_mounted(&self.firmware, "firmware", |firmware| {
                let parts = boot::BootPartitions { root, firmware, layout: &self.layout, consoles };
                parts.install(target)
            })
        })???;
        boot::write_bios_boot_code(target)
    }
}

fn feed_tar(
    stream: &mut ImageStream,
    target: &InstallTarget,
    at: &Path,
) -> Result<(), DeployError> {
    let arguments = ["-x", "-p", "--numeric-owner", "-f", "-", "-C", &text(at)];
    let poured = match decompress::open_tar(&mut *stream) {
        Ok(mut files) => target.platform.run_with_source(Tool::Tar, &arguments, &mut files),
        Err(error) => Err(FeedError::Source(error)),
    };
    match (poured, stream.read_error()) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(halt)) => Err(halt),
        (Err(FeedError::Source(error)), None) => {
            Err(Failure::image_broken(format!("the image cannot be decompressed: {error}")).into())
        }
        (Err(FeedError::Tool(message)), None) if message.contains("No space left") => {
            let path = &target.disk.path;
            let message = format!(
                "{path} has no room for the files of the image: {message}; choose a smaller image or another root_disk"
            );
            Err(Failure::new(DeploymentFailure::DiskTooSmall, message).into())
        }
        (Err(FeedError::Tool(message)), None) => {
            Err(Failure::image_broken(format!("the image cannot be unpacked: {message}")).into())
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
