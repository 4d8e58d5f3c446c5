//! The work itself, in order: choose, check, write, verify, install.

use crate::choose::{check_room, choose};
use crate::console::{say, spoken_size};
use crate::disk::Disk;
use crate::failure::{Failure, Halt};
use crate::farrier::Farrier;
use crate::hands::Hands;
use crate::image::{Reading, Stream};
use crate::install::Site;
use crate::inventory;
use crate::pace::Pace;
use crate::qcow2::Qcow2;
use crate::raw;
use crate::status::{End, Status};
use crate::tar;
use std::path::Path;
use wire::deploy::{Assignment, FailureCode, ImageKind};

pub struct Work<'a> {
    pub granted: &'a Assignment,
    pub disks: &'a [inventory::Disk],
    pub farrier: &'a Farrier,
    pub status: &'a Status,
    pub hands: &'a dyn Hands,
    pub root: &'a Path,
    pub consoles: &'a [String],
    pub pace: &'a Pace,
}

impl Work<'_> {
    /// Works, says what came of it, and waits to be told how it ends.
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
        let disk = choose(self.disks, &self.granted.root_disk)?;
        let site = Site { hands: self.hands, root: self.root, disk };
        let image = &self.granted.image;
        let said = format!(
            "writing {} ({}, {}) to {} ({})",
            image.name,
            image.kind.as_str(),
            spoken_size(image.size),
            disk.path,
            spoken_size(disk.size)
        );
        self.status.begin(image.size, said);
        self.write(&site)?;
        self.status.progress(image.size);
        self.status.check()?;
        let said = format!("{} is written and its checksum is right; installing", image.name);
        self.status.installing(said);
        site.reread()?;
        let host_keys = site.install(self.granted)?;
        self.status.check()?;
        Ok(host_keys)
    }

    fn write(&self, site: &Site) -> Result<(), Halt> {
        let image = &self.granted.image;
        let source = self
            .farrier
            .image(image)
            .map_err(|said| Failure::broken(format!("image url: {said}")))?;
        let reading =
            Reading { source: &source, size: image.size, status: self.status, pace: self.pace };
        match image.kind {
            ImageKind::Raw => {
                check_room(site.disk, image.size, &image.name)?;
                let mut disk = self.open(site)?;
                let mut stream = Stream::new(reading);
                let poured = raw::pour(&mut stream, &mut disk);
                verified(poured, stream, &image.sha256)?;
                Ok(disk.finish()?)
            }
            ImageKind::Qcow2 => {
                let qcow2 = Qcow2::look(reading)?;
                check_room(site.disk, qcow2.disk_size(), &image.name)?;
                let mut disk = self.open(site)?;
                let mut stream = Stream::new(reading);
                let poured = qcow2.pour(&mut stream, &mut disk, self.status);
                verified(poured, stream, &image.sha256)?;
                Ok(disk.finish()?)
            }
            ImageKind::Tar => {
                tar::check(site, image)?;
                let prepared = tar::prepare(site)?;
                let mut stream = Stream::new(reading);
                let poured = prepared.pour(&mut stream, site);
                verified(poured, stream, &image.sha256)?;
                Ok(prepared.finish(site, self.consoles)?)
            }
            ImageKind::Unknown => {
                Err(Failure::broken("this deploy environment cannot write images of that kind")
                    .into())
            }
        }
    }

    fn open(&self, site: &Site) -> Result<Disk, Failure> {
        let mut disk = Disk::open(&site.device(), &site.disk.path, site.disk.size)?;
        disk.clear_ends()?;
        Ok(disk)
    }
}

/// Compares the checksum, also of what could not be read to its end: an image that is not the one it should be is no broken one.
fn verified(poured: Result<(), Halt>, stream: Stream, sha256: &str) -> Result<(), Halt> {
    match poured {
        Ok(()) => stream.finish(sha256),
        Err(Halt::Failed(failure)) if failure.code == FailureCode::ImageBroken => {
            stream.finish(sha256)?;
            Err(failure.into())
        }
        Err(halt) => Err(halt),
    }
}
