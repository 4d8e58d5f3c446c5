//! A tar of a root file system: the disk is partitioned, the files are unpacked, and what is needed to boot them is put beside them.
//!
//! There are two partitions: one for the firmware, which both an old BIOS and UEFI start from, and one for everything else. Nothing
//! can be booted before the checksum has been found to be right.

mod boot;
mod layout;
mod unpack;

use crate::choose::check_room;
use crate::disk::{Disk, MIB};
use crate::failure::{Failure, Halt};
use crate::hands::{Spilled, Tool};
use crate::image::Stream;
use crate::install::{Site, Volume};
use crate::inventory;
use crate::volume::FileSystem;
use layout::Layout;
use std::path::Path;
use wire::deploy::{FailureCode, Image};

/// Beside what the files need: the file system's own tables.
const OVERHEAD_BYTES: u64 = 64 * MIB;

/// A disk that has been made ready to take the files.
pub struct Prepared {
    layout: Layout,
    firmware: Volume,
    root: Volume,
}

/// Looks whether there can be room at all. How much the files need when they are unpacked is only known afterwards.
pub fn check(site: &Site, image: &Image) -> Result<(), Failure> {
    let needed = layout::FIRMWARE_BYTES + image.size + OVERHEAD_BYTES;
    check_room(site.disk, needed, &format!("{} with what it boots from", image.name))
}

/// Makes the partitions and their file systems.
pub fn prepare(site: &Site) -> Result<Prepared, Failure> {
    // Only the ends are cleared; nobody may hold the disk while it is partitioned.
    Disk::open(&site.device(), &site.disk.path, site.disk.size)?.clear_ends()?;
    let layout = Layout::new().map_err(Failure::install)?;
    let device = site.device();
    let run = |tool: Tool, arguments: &[&str], input: &str| {
        let failed =
            |said| Failure::install(format!("{} cannot be prepared: {said}", site.disk.path));
        site.hands.run(tool, arguments, input).map_err(failed)
    };
    let arguments = ["--quiet", "--wipe", "always", "--wipe-partitions", "always", &text(&device)];
    run(Tool::Sfdisk, &arguments, &layout.script())?;
    site.reread()?;
    let partitions = inventory::partitions(site.root, &site.disk.name);
    let [firmware, root] = partitions.as_slice() else {
        return Err(Failure::install(format!(
            "{} was given 2 partitions, and the kernel sees {}",
            site.disk.path,
            partitions.len()
        )));
    };
    run(Tool::MkfsVfat, &["-F", "32", "-n", "FIRMWARE", &text(firmware)], "")?;
    run(Tool::MkfsExt4, &["-q", "-F", "-L", "root", &text(root)], "")?;
    let volume = |device: &Path, kind| Volume { device: device.to_path_buf(), kind, options: "" };
    Ok(Prepared {
        layout,
        firmware: volume(firmware, FileSystem::Vfat),
        root: volume(root, FileSystem::Ext4),
    })
}

impl Prepared {
    /// Unpacks the files as they arrive.
    pub fn pour(&self, stream: &mut Stream, site: &Site) -> Result<(), Halt> {
        site.within(&self.root, "root", |at| unpack(stream, site, at))?
    }

    /// Makes the disk bootable, once it is known that it should be.
    pub fn finish(&self, site: &Site, consoles: &[String]) -> Result<(), Failure> {
        site.within(&self.root, "root", |root| {
            site.within(&self.firmware, "firmware", |firmware| {
                let parts = boot::Parts { root, firmware, layout: &self.layout, consoles };
                parts.put(site)
            })
        })???;
        boot::put_starter(site)
    }
}

fn unpack(stream: &mut Stream, site: &Site, at: &Path) -> Result<(), Halt> {
    let arguments = ["-x", "-p", "--numeric-owner", "-f", "-", "-C", &text(at)];
    let poured = match unpack::open(&mut *stream) {
        Ok(mut files) => site.hands.pour(Tool::Tar, &arguments, &mut files),
        Err(error) => Err(Spilled::Source(error)),
    };
    match (poured, stream.halted()) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(halt)) => Err(halt),
        (Err(Spilled::Source(error)), None) => {
            Err(Failure::broken(format!("the image cannot be decompressed: {error}")).into())
        }
        (Err(Spilled::Tool(said)), None) if said.contains("No space left") => {
            let path = &site.disk.path;
            let said = format!(
                "{path} has no room for the files of the image: {said}; choose a smaller image or another root_disk"
            );
            Err(Failure::new(FailureCode::DiskTooSmall, said).into())
        }
        (Err(Spilled::Tool(said)), None) => {
            Err(Failure::broken(format!("the image cannot be unpacked: {said}")).into())
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
