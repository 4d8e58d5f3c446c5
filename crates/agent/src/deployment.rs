//! The deployment, step by step: choose the disk, check the size, write, verify, install.

use crate::console::{format_size, print_line};
use crate::deploy_client::DeployClient;
use crate::disk::DiskWriter;
use crate::disk_selector::{check_disk_size, select_disk};
use crate::failure::{DeployError, Failure};
use crate::image::{ImageStream, ReadContext};
use crate::install::InstallTarget;
use crate::inventory;
use crate::platform::Platform;
use crate::qcow2::Qcow2;
use crate::raw;
use crate::status::{DeployStatus, FinalAction};
use crate::tar;
use crate::timing::Timing;
use crate::verified_image::{VerifiedImage, memory_budget};
use std::path::Path;
use wire::deploy::{Assignment, DeploymentFailure, ImageKind};

pub struct Deployment<'a> {
    pub granted: &'a Assignment,
    pub disks: &'a [inventory::DiskInfo],
    pub client: &'a DeployClient,
    pub status: &'a DeployStatus,
    pub platform: &'a dyn Platform,
    pub root: &'a Path,
    pub consoles: &'a [String],
    pub timing: &'a Timing,
}

impl Deployment<'_> {
    /// Carries out the deployment, reports the result, and waits for the decision how to end.
    pub fn run(&self) -> FinalAction {
        match self.deploy() {
            Ok(host_keys) => {
                let message = format!("{} is installed", self.granted.image.name);
                self.status.set_installed(message, host_keys);
            }
            Err(DeployError::Failed(failure)) => self.status.set_failed(failure),
            Err(DeployError::Stopped) => print_line("told to stop"),
        }
        self.status.wait_for_final_action()
    }

    fn deploy(&self) -> Result<Vec<String>, DeployError> {
        let disk = select_disk(self.disks, &self.granted.root_disk)?;
        let target = InstallTarget { platform: self.platform, root: self.root, disk };
        let image = &self.granted.image;
        let message = format!(
            "writing {} ({}, {}) to {} ({})",
            image.name,
            image.kind.as_str(),
            format_size(image.size),
            disk.path,
            format_size(disk.size)
        );
        self.status.start_writing(image.size, message);
        self.write_image(&target)?;
        self.status.progress(image.size);
        self.status.check()?;
        let message = format!("{} is written and its checksum is right; installing", image.name);
        self.status.start_installing(message);
        target.reread_partitions()?;
        let host_keys = target.install(self.granted)?;
        self.status.check()?;
        Ok(host_keys)
    }

    fn write_image(&self, target: &InstallTarget) -> Result<(), DeployError> {
        let image = &self.granted.image;
        let source = self
            .client
            .image(image)
            .map_err(|message| Failure::image_broken(format!("image url: {message}")))?;
        match image.kind {
            ImageKind::Raw => check_disk_size(target.disk, image.size, &image.name)?,
            ImageKind::Tar => tar::check_size(target, image)?,
            // Its size is in its tables.
            ImageKind::Qcow2 => {}
            ImageKind::Unknown => {
                let message = "this deploy environment cannot write images of that kind";
                return Err(Failure::image_broken(message).into());
            }
        }
        let (size, status, timing) = (image.size, self.status, self.timing);
        let reading = ReadContext { source: &source, size, status, timing };
        print_line("checking the image before anything is written");
        let budget = memory_budget(self.root);
        let verified = VerifiedImage::check(reading, &image.sha256, budget)?;
        let reading = ReadContext { source: &verified, ..reading };
        match image.kind {
            ImageKind::Raw => {
                let mut disk = self.open_disk(target)?;
                let mut stream = ImageStream::new(reading);
                let written = raw::write_image(&mut stream, &mut disk);
                verify_checksum(written, stream, &image.sha256)?;
                Ok(disk.finish()?)
            }
            ImageKind::Qcow2 => {
                let qcow2 = Qcow2::read_tables(reading)?;
                check_disk_size(target.disk, qcow2.disk_size(), &image.name)?;
                let mut disk = self.open_disk(target)?;
                let mut stream = ImageStream::new(reading);
                let written = qcow2.write_image(&mut stream, &mut disk, self.status);
                verify_checksum(written, stream, &image.sha256)?;
                Ok(disk.finish()?)
            }
            ImageKind::Tar => {
                let prepared = tar::prepare_disk(target)?;
                let mut stream = ImageStream::new(reading);
                let written = prepared.unpack(&mut stream, target);
                verify_checksum(written, stream, &image.sha256)?;
                Ok(prepared.make_bootable(target, self.consoles)?)
            }
            ImageKind::Unknown => Ok(()),
        }
    }

    fn open_disk(&self, target: &InstallTarget) -> Result<DiskWriter, Failure> {
        let mut disk = DiskWriter::open(&target.device(), &target.disk.path, target.disk.size)?;
        disk.clear_partition_tables()?;
        Ok(disk)
    }
}

/// Compares the checksum, even when the image could not be decoded: a wrong checksum is reported in
/// preference to a broken image.
fn verify_checksum(
    written: Result<(), DeployError>,
    stream: ImageStream,
    sha256: &str,
) -> Result<(), DeployError> {
    match written {
        Ok(()) => stream.finish(sha256),
        Err(DeployError::Failed(failure)) if failure.code == DeploymentFailure::ImageBroken => {
            stream.finish(sha256)?;
            Err(failure.into())
        }
        Err(halt) => Err(halt),
    }
}
