//! The fuzz targets: what reads input that Farrier does not trust. The suite includes this file and
//! replays `fuzz/corpus` with it.

use agent::deploy_client::RequestError;
use agent::disk::DiskWriter;
use agent::image::{ImageSource, ImageStream, ReadContext};
use agent::qcow2::Qcow2;
use agent::status::DeployStatus;
use agent::tar::decompress::open_tar;
use agent::timing::Timing;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

/// Reads one input, and panics when a promise is broken.
type Target = fn(&[u8]);

/// The name of each target is that of the folder with its corpus.
pub const TARGETS: [(&str, Target); 11] = [
    ("filter", server::untrusted::read_filter),
    ("page_token", server::untrusted::read_page_token),
    ("request", server::untrusted::read_request),
    ("certificate", server::untrusted::read_certificate),
    ("jwt", server::untrusted::read_web_token),
    ("agent_body", server::untrusted::read_agent_body),
    ("netboot_body", server::untrusted::read_netboot_body),
    ("redfish_answer", server::untrusted::read_redfish_answer),
    ("maas_answer", server::untrusted::read_maas_answer),
    ("qcow2", write_qcow2),
    ("tar", unpack_tar),
];

/// The largest disk that is written to here.
const MAX_DISK_BYTES: u64 = 8 * 1024 * 1024;
/// The most that is read of an archive: small files may unpack to very large ones.
const MAX_UNPACKED_BYTES: u64 = 4 * 1024 * 1024;

struct Bytes<'a>(&'a [u8]);

impl ImageSource for Bytes<'_> {
    fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, RequestError> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.0.len());
        Ok(Box::new(&self.0[from..]))
    }
}

/// Reads the tables of an image and writes it to a disk, as the deploy environment does.
fn write_qcow2(bytes: &[u8]) {
    let none = Duration::ZERO;
    let (status, timing) =
        (DeployStatus::default(), Timing { pause: none, longest_pause: none, ..Timing::default() });
    let (source, size) = (Bytes(bytes), bytes.len() as u64);
    let reading = ReadContext { source: &source, size, status: &status, timing: &timing };
    let Ok(image) = Qcow2::read_tables(reading) else { return };
    let disk_size = image.disk_size();
    if disk_size > MAX_DISK_BYTES {
        return;
    }
    let path = std::env::temp_dir().join(format!("farrier-fuzz-{}.img", std::process::id()));
    let file = File::create(&path).and_then(|file| file.set_len(disk_size));
    assert!(file.is_ok(), "{}: {file:?}", path.display());
    if let Ok(mut disk) = DiskWriter::open(&path, "disk", disk_size) {
        let mut stream = ImageStream::new(reading);
        let _ = image.write_image(&mut stream, &mut disk, &status);
    }
    let length = path.metadata().map(|found| found.len()).ok();
    assert_eq!(length, Some(disk_size), "it wrote past the end of the disk");
}

fn unpack_tar(bytes: &[u8]) {
    let Ok(unpacked) = open_tar(bytes) else { return };
    // The archive itself is read by the system's tar.
    let _ = std::io::copy(&mut unpacked.take(MAX_UNPACKED_BYTES), &mut std::io::sink());
}
