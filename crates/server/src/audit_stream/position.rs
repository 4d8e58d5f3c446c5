//! A checkpoint of the chain in a file of the data directory: the position of a stream, and the end
//! of the log.

use model::audit::AuditSeal;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tokio::task::spawn_blocking;

pub(crate) struct PositionFile(PathBuf);

impl PositionFile {
    /// The file for this name.
    pub fn new(data_dir: &Path, name: &str) -> Self {
        Self(data_dir.join(format!("audit-{name}.position")))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// None: there is no file.
    pub async fn load(&self) -> Result<Option<AuditSeal>, String> {
        let text = match tokio::fs::read_to_string(&self.0).await {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        let parsed = text.trim_end().split_once(':').and_then(|(position, seal)| {
            Some(AuditSeal { position: position.parse().ok()?, seal: seal.to_string() })
        });
        parsed
            .map(Some)
            .ok_or_else(|| format!("{} holds no position of the audit log", self.0.display()))
    }

    /// Replaces the file.
    pub async fn save(&self, seal: &AuditSeal) -> Result<(), String> {
        let (path, text) = (self.0.clone(), format!("{}:{}\n", seal.position, seal.seal));
        let written = spawn_blocking(move || replace(&path, &text)).await;
        let written = written.unwrap_or_else(|error| Err(io::Error::other(error)));
        written.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.0.display())
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_position_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = PositionFile::new(dir.path(), "file");
        assert_eq!(file.load().await, Ok(None));
        for position in [7, 8] {
            let seal = AuditSeal { position, seal: "9f3c".into() };
            file.save(&seal).await.unwrap();
            assert_eq!(file.load().await, Ok(Some(seal)));
        }
        std::fs::write(dir.path().join("audit-file.position"), "x").unwrap();
        assert!(file.load().await.unwrap_err().contains("no position"));
    }
}
