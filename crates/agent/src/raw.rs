//! A raw image: its bytes are the bytes of the disk, from the first one on.

use crate::disk::{DiskWriter, MIB};
use crate::failure::DeployError;
use crate::image::ImageStream;

/// Writes everything, including zeros: no old content of the disk may remain in between.
pub fn write_image(stream: &mut ImageStream, disk: &mut DiskWriter) -> Result<(), DeployError> {
    let mut piece = vec![0; MIB as usize];
    loop {
        let at = stream.position();
        let count = stream.fill(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        disk.write_at(at, &piece[..count])?;
    }
}
