//! The file of JSON lines. Each batch is on the disk (fsync) before the position of the stream
//! moves.

use super::{Line, Resend, SinkError};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

/// The longest line is far shorter: 100 objects, and texts that are bounded.
const MAX_TORN_BYTES: u64 = 1024 * 1024;

pub(super) struct FileSink {
    path: PathBuf,
    /// None: it is opened by the next batch.
    open: Option<File>,
}

impl FileSink {
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    pub async fn append(&mut self, lines: Vec<Line>) -> Result<(), SinkError> {
        let (path, open) = (self.path.clone(), self.open.take());
        let written = spawn_blocking(move || {
            let text: String = lines.into_iter().map(|line| line.json + "\n").collect();
            append(&path, open, &text)
        });
        let written = written.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match written {
            Ok(file) => {
                self.open = Some(file);
                Ok(())
            }
            Err(error) => {
                let said = format!("{}: {error}", self.path.display());
                Err(SinkError { said, resend: Resend::Nothing })
            }
        }
    }
}

/// Appends to the file, and opens it again if the path is another file now.
fn append(path: &Path, open: Option<File>, text: &str) -> io::Result<File> {
    let mut file = match open {
        Some(file) if is_at(&file, path)? => file,
        Some(_) | None => open_file(path)?,
    };
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    Ok(file)
}

/// True if the path still names this file. After a rotation it does not.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(path.metadata().is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
}

/// Opens the file, and removes the part of a line with which a killed server or a full disk has
/// left it: its entry is written again.
fn open_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let mut file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    let tail = length.min(MAX_TORN_BYTES);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(length - tail))?;
    (&file).take(tail).read_to_end(&mut bytes)?;
    let line = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let torn = &bytes[line..];
    match torn.first() {
        None => {}
        Some(b'{') => file.set_len(length - torn.len() as u64)?,
        Some(_) => {
            let message = "does not end with a line of the audit log; name another file";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn line(number: u32) -> Line {
        Line { at: String::new(), accepted: true, json: format!("{{\"n\":{number}}}") }
    }

    async fn append(sink: &mut FileSink, number: u32) -> Result<(), String> {
        sink.append(vec![line(number)]).await.map_err(|error| error.said)
    }

    #[tokio::test]
    async fn a_rotated_file_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1"));
        let mut sink = FileSink::new(path.clone());
        append(&mut sink, 1).await.unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::rename(&path, &old).unwrap();
        append(&mut sink, 2).await.unwrap();
        append(&mut sink, 3).await.unwrap();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(text(&old), "{\"n\":1}\n");
        assert_eq!(text(&path), "{\"n\":2}\n{\"n\":3}\n");
        // A file that is truncated in place is continued at its new end.
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        append(&mut sink, 4).await.unwrap();
        assert_eq!(text(&path), "{\"n\":4}\n");
    }

    #[tokio::test]
    async fn a_torn_line_is_removed_and_a_foreign_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        for (before, after) in [
            ("", "{\"n\":5}\n"),
            ("{\"n\":4}\n", "{\"n\":4}\n{\"n\":5}\n"),
            ("{\"n\":4}\n{\"n\"", "{\"n\":4}\n{\"n\":5}\n"),
            ("{\"n", "{\"n\":5}\n"),
        ] {
            std::fs::write(&path, before).unwrap();
            append(&mut FileSink::new(path.clone()), 5).await.unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after, "{before:?}");
        }
        std::fs::write(&path, "root:x:0:0").unwrap();
        let refused = append(&mut FileSink::new(path.clone()), 5).await.unwrap_err();
        assert!(refused.contains("name another file"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "root:x:0:0");
    }
}
