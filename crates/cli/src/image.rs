//! Images: the OS images for machines, and the netboot configuration.

use crate::args::{ImageCommand, ImageCreateArgs, NetbootCommand};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result, eprint_quietly};
use crate::filter::empty_list_note;
use crate::output::Screen;
use crate::table::{Table, format_pairs};
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    Artifact, CreateImageRequest, DeleteImageRequest, GetImageRequest, GetNetbootConfigRequest,
    Image, ImageKind, ListImagesRequest, UploadArtifactRequest,
};
use proto::words::{self, WireEnum};
use std::io::IsTerminal;
use std::path::Path;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// The size of one upload chunk, in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// The number of chunks that may wait to be sent.
const CHUNK_QUEUE: usize = 4;
/// The magic number of a qcow2 file.
const QCOW2_MAGIC: &[u8] = b"QFI\xfb";

pub async fn run(client: &Client, screen: &mut Screen, command: ImageCommand) -> Result<Exit> {
    match command {
        ImageCommand::Create(args) => {
            let image = build_image(client, args).await?;
            let request = CreateImageRequest { image: Some(image), dry_run: client.is_dry_run() };
            let created = client.call(client.images().create_image(request)).await?;
            let words = |image: &Image| {
                let (name, created) = (one_line(&image.name), client.outcome("created"));
                let next = match client.is_dry_run() {
                    true => String::new(),
                    false => format!("\nNext: farrier reimage MACHINE --image {name}\n"),
                };
                format!("image {name} {created}\n\n{}{next}", describe(image))
            };
            screen.print_record(&created, words)?;
        }
        ImageCommand::List(args) => {
            let images = fetch_pages(args.limit, async |page_size, page_token| {
                let filter = args.filter.clone();
                let request = ListImagesRequest { page_size, page_token, filter };
                let page = client.call(client.images().list_images(request)).await?;
                Ok((page.images, page.next_page_token, page.unreadable_rows))
            })
            .await?;
            let none = "no images; create one with `farrier image create NAME --file FILE`";
            screen.print_list(&images, table, empty_list_note(&args.filter, none))?;
        }
        ImageCommand::Get(args) => {
            let request = GetImageRequest { name: args.name };
            let image = client.call(client.images().get_image(request)).await?;
            screen.print_record(&image, describe)?;
        }
        ImageCommand::Delete(args) => {
            let request = DeleteImageRequest { name: args.name, dry_run: client.is_dry_run() };
            let gone = client.call(client.images().delete_image(request)).await?;
            screen.print_record(&gone, |gone| {
                format!("image {} {}\n", one_line(&gone.name), client.outcome("deleted"))
            })?;
        }
    }
    Ok(Exit::Success)
}

pub async fn run_netboot(
    client: &Client,
    screen: &mut Screen,
    command: NetbootCommand,
) -> Result<Exit> {
    let NetbootCommand::Config(args) = command;
    let request = GetNetbootConfigRequest { interface: args.interface, range: args.range };
    let config = client.call(client.images().get_netboot_config(request)).await?;
    screen.print_record(&config, |config| config.dnsmasq.clone())?;
    Ok(Exit::Success)
}

/// Builds the image from the arguments and uploads its files.
async fn build_image(client: &Client, args: ImageCreateArgs) -> Result<Image> {
    let sha256 = args.sha256.unwrap_or_default();
    let mut image = Image { name: args.name, cmdline: args.cmdline, ..Image::default() };
    if let Some(kernel) = &args.kernel {
        image.kind = image_kind(args.kind.as_deref().unwrap_or("kernel"))?;
        image.kernel = Some(upload(client, kernel, &sha256).await?);
        if let Some(initrd) = &args.initrd {
            image.initrd = Some(upload(client, initrd, "").await?);
        }
    } else if let Some(url) = args.url {
        let kind = args.kind.or_else(|| kind_from_name(&url)).ok_or_else(|| unknown_kind(&url))?;
        image.kind = image_kind(&kind)?;
        image.file = Some(Artifact { sha256, size: args.size.unwrap_or_default(), url });
    } else if let Some(file) = &args.file {
        let shown = file.display().to_string();
        let kind =
            args.kind.or_else(|| kind_from_name(&shown)).ok_or_else(|| unknown_kind(&shown))?;
        image.kind = image_kind(&kind)?;
        check_kind(file, &kind)?;
        image.file = Some(upload(client, file, &sha256).await?);
    }
    Ok(image)
}

fn image_kind(word: &str) -> Result<i32> {
    match words::value::<ImageKind>(word) {
        0 => {
            let known = ImageKind::WORDS.join(", ");
            Err(Failure::refused(format!("--kind is {word:?}; use one of {known}")))
        }
        kind => Ok(kind),
    }
}

/// Derives the kind of an image from its file name.
fn kind_from_name(name: &str) -> Option<String> {
    const ENDS: [(&str, &str); 9] = [
        (".raw", "raw"),
        (".img", "raw"),
        (".qcow2", "qcow2"),
        (".tar", "tar"),
        (".tar.gz", "tar"),
        (".tgz", "tar"),
        (".tar.zst", "tar"),
        (".tzst", "tar"),
        (".iso", "iso"),
    ];
    let name = name.to_ascii_lowercase();
    ENDS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, kind)| kind.to_string())
}

fn unknown_kind(name: &str) -> Failure {
    let message =
        format!("what {name} is cannot be seen from its name; add --kind raw, qcow2, tar or iso");
    Failure::refused(message)
}

/// Many .img files are qcow2. Written to a disk unchanged, such an image would not boot.
fn check_kind(path: &Path, kind: &str) -> Result<()> {
    let mut start = [0; QCOW2_MAGIC.len()];
    let read = std::fs::File::open(path)
        .and_then(|mut file| std::io::Read::read(&mut file, &mut start))
        .map_err(|error| unreadable(path, &error))?;
    let is_qcow2 = start.get(..read) == Some(QCOW2_MAGIC);
    match (is_qcow2, kind == "qcow2") {
        (true, false) => Err(Failure::refused(format!(
            "{} is a qcow2 image and not {kind}; add --kind qcow2",
            path.display()
        ))),
        (false, true) => Err(Failure::refused(format!(
            "{} is no qcow2 image; add --kind raw if it is a whole disk",
            path.display()
        ))),
        (true, true) | (false, false) => Ok(()),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::refused(format!("{}: {error}", path.display()))
}

/// Uploads a file, with a progress display if stderr is a terminal.
async fn upload(client: &Client, path: &Path, sha256: &str) -> Result<Artifact> {
    let unreadable = |error| unreadable(path, &error);
    let mut file = tokio::fs::File::open(path).await.map_err(unreadable)?;
    let total = file.metadata().await.map_err(unreadable)?.len();
    let (sender, receiver) = mpsc::channel(CHUNK_QUEUE);
    let mut images = client.images();
    let sending =
        tokio::spawn(async move { images.upload_artifact(ReceiverStream::new(receiver)).await });
    let mut progress = UploadProgress::new(path, total);
    let (mut sha256, mut size) = (sha256.to_string(), i64::try_from(total).unwrap_or(i64::MAX));
    loop {
        let mut data = Vec::with_capacity(CHUNK_BYTES);
        (&mut file).take(CHUNK_BYTES as u64).read_to_end(&mut data).await.map_err(unreadable)?;
        if data.is_empty() {
            break;
        }
        progress.add_sent(data.len());
        let (sha256, size) = (std::mem::take(&mut sha256), std::mem::take(&mut size));
        let request = UploadArtifactRequest { sha256, data, size };
        if sender.send(request).await.is_err() {
            // The server has refused the upload; its response says why.
            break;
        }
    }
    drop(sender);
    let answer = sending.await.map_err(|error| Failure::bug(error.to_string()))?;
    progress.finish();
    answer.map(tonic::Response::into_inner).map_err(|status| client.failure(status))
}

/// The progress of an upload, on one line of the terminal.
struct UploadProgress {
    name: String,
    total: u64,
    sent: u64,
    shown: Option<u64>,
}

impl UploadProgress {
    fn new(path: &Path, total: u64) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shown = std::io::stderr().is_terminal().then_some(0);
        Self { name, total, sent: 0, shown }
    }

    fn add_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        let percent = self.sent.saturating_mul(100) / self.total.max(1);
        if self.shown.is_some_and(|shown| shown < percent) {
            self.shown = Some(percent);
            eprint_quietly(&format!("\ruploading {}: {percent} %", one_line(&self.name)));
        }
    }

    fn finish(&self) {
        if self.shown.is_some() {
            eprint_quietly("\n");
        }
    }
}

fn table(images: &[Image], wide: bool) -> Table {
    let clock = Clock::system();
    let names = ["NAME", "KIND", "SIZE", "ADDED"];
    let more = ["SHA256"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for image in images {
        let size: i64 = image_files(image).iter().map(|(_, file)| file.size).sum();
        let mut row = vec![
            (&image.name).into(),
            image.kind().word().into(),
            format_bytes(size).into(),
            clock.ago(image.created_at.as_ref()).into(),
        ];
        if wide {
            let sums: Vec<&str> =
                image_files(image).iter().map(|(_, file)| file.sha256.as_str()).collect();
            row.push(sums.join(",").into());
        }
        table.add_row(row);
    }
    table
}

fn image_files(image: &Image) -> Vec<(&'static str, &Artifact)> {
    let all = [("File:", &image.file), ("Kernel:", &image.kernel), ("Initrd:", &image.initrd)];
    all.into_iter().filter_map(|(name, file)| file.as_ref().map(|file| (name, file))).collect()
}

fn describe(image: &Image) -> String {
    let mut facts = vec![("Image:", image.name.clone()), ("Kind:", image.kind().word().into())];
    for (name, file) in image_files(image) {
        let position = if file.url.is_empty() { "kept by the server" } else { &file.url };
        facts
            .push((name, format!("{} ({} bytes), {position}", format_bytes(file.size), file.size)));
        facts.push(("SHA-256:", file.sha256.clone()));
    }
    if !image.cmdline.is_empty() {
        facts.push(("Command line:", image.cmdline.clone()));
    }
    facts.push(("Added:", Clock::system().ago(image.created_at.as_ref())));
    format_pairs(&facts)
}

/// Formats a size with a binary unit.
fn format_bytes(size: i64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = size.max(0) as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{size} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_comes_from_the_name_or_the_option() {
        for (name, kind) in [
            ("debian.qcow2", Some("qcow2")),
            ("Disk.RAW", Some("raw")),
            ("http://h/rootfs.tar.zst", Some("tar")),
            ("x.iso", Some("iso")),
            ("vmlinuz", None),
        ] {
            assert_eq!(kind_from_name(name).as_deref(), kind, "{name}");
        }
    }

    #[test]
    fn a_qcow2_file_is_not_taken_for_a_raw_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        std::fs::write(&path, b"QFI\xfb\0\0\0\x03").unwrap();
        check_kind(&path, "qcow2").unwrap();
        assert!(check_kind(&path, "raw").unwrap_err().message.contains("--kind qcow2"));
        std::fs::write(&path, b"\0").unwrap();
        assert!(check_kind(&path, "qcow2").is_err());
        check_kind(&path, "raw").unwrap();
    }

    #[test]
    fn sizes_are_spoken() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(5 << 30), "5.0 GiB");
    }
}
