//! The deployment, step by step: choose the disk, check the size, write, verify, install.

use crate::console::{format_size, say};
use crate::deploy_client::DeployClient;
use crate::disk::DiskWriter;
use crate::disk_selector::{check_disk_size, select_disk};
use crate::failure::{Failure, Halt};
use crate::image::{ImageStream, ReadContext};
use crate::install::InstallTarget;
use crate::inventory;
use crate::platform::Platform;
use crate::qcow2::Qcow2;
use crate::raw;
use crate::status::{End, Status};
use crate::tar;
use crate::timing::Pace;
use crate::wire::{Code, Granted, Kind};
use std::path::Path;

pub struct Work<'a> {
    pub granted: &'a Granted,
    pub disks: &'a [inventory::DiskInfo],
    pub client: &'a DeployClient,
    pub status: &'a Status,
    pub platform: &'a dyn Platform,
    pub root: &'a Path,
    pub consoles: &'a [String],
    pub pace: &'a Pace,
}

impl Work<'_> {
    /// Carries out the deployment, reports the result, and waits for the decision how to end.
    pub fn see_through(&self) -> End {
        match self.work() {
            Ok(host_keys) => {
                let said = format!("{} is installed", self.granted.image.name);
                self.status.installed(said, host_keys);
            }
            Err(Halt::Failed(failure)) => self.status.failed(failure),
            Err(Halt::Stopped) => say("told to stop"),
        }
        self.status.wait_for_end()
    }

    fn work(&self) -> Result<Vec<String>, Halt> {
        let disk = select_disk(self.disks, &self.granted.root_disk)?;
        let target = InstallTarget { platform: self.platform, root: self.root, disk };
        let image = &self.granted.image;
        let said = format!(
            "writing {} ({}, {}) to {} ({})",
            image.name,
            image.kind.as_str(),
            format_size(image.size),
            disk.path,
            format_size(disk.size)
        );
        self.status.begin(image.size, said);
        self.write(&target)?;
        self.status.progress(image.size);
        self.status.check()?;
        let said = format!("{} is written and its checksum is right; installing", image.name);
        self.status.installing(said);
        target.reread_partitions()?;
        let host_keys = target.install(self.granted)?;
        self.status.check()?;
        Ok(host_keys)
    }

    fn write(&self, target: &InstallTarget) -> Result<(), Halt> {
        let image = &self.granted.image;
        let source = self
            .client
            .image(image)
            .map_err(|said| Failure::broken(format!("image url: {said}")))?;
        let reading =
            ReadContext { source: &source, size: image.size, status: self.status, pace: self.pace };
        match image.kind {
            Kind::Raw => {
                check_disk_size(target.disk, image.size, &image.name)?;
                let mut disk = self.open(target)?;
                let mut stream = ImageStream::new(reading);
                let poured = raw::pour(&mut stream, &mut disk);
                verified(poured, stream, &image.sha256)?;
                Ok(disk.finish()?)
            }
            Kind::Qcow2 => {
                let qcow2 = Qcow2::look(reading)?;
                check_disk_size(target.disk, qcow2.disk_size(), &image.name)?;
                let mut disk = self.open(target)?;
                let mut stream = ImageStream::new(reading);
                let poured = qcow2.pour(&mut stream, &mut disk, self.status);
                verified(poured, stream, &image.sha256)?;
                Ok(disk.finish()?)
            }
            Kind::Tar => {
                tar::check(target, image)?;
                let prepared = tar::prepare(target)?;
                let mut stream = ImageStream::new(reading);
                let poured = prepared.pour(&mut stream, target);
                verified(poured, stream, &image.sha256)?;
                Ok(prepared.finish(target, self.consoles)?)
            }
            Kind::Unknown => {
                Err(Failure::broken("this deploy environment cannot write images of that kind")
                    .into())
            }
        }
    }

    fn open(&self, target: &InstallTarget) -> Result<DiskWriter, Failure> {
        let mut disk = DiskWriter::open(&target.device(), &target.disk.path, target.disk.size)?;
        disk.clear_partition_tables()?;
        Ok(disk)
    }
}

/// Compares the checksum, even when the image could not be decoded: a wrong checksum is reported in
/// preference to a broken image.
fn verified(poured: Result<(), Halt>, stream: ImageStream, sha256: &str) -> Result<(), Halt> {
    match poured {
        Ok(()) => stream.finish(sha256),
        Err(Halt::Failed(failure)) if failure.code == Code::ImageBroken => {
            stream.finish(sha256)?;
            Err(failure.into())
        }
        Err(halt) => Err(halt),
    }
}
