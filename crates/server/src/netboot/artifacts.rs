//! The files of images, named by their checksums. A file appears complete or not at all.

use futures_util::{Stream, StreamExt};
use model::image::{self, Artifact};
use model::refusal::{Reason, Refusal};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;

/// Prefix of incomplete files.
const PART: &str = ".part-";
/// An incomplete file of this age is abandoned. Younger ones may belong to another replica, which
/// shares the directory.
const PART_AGE: Duration = Duration::from_secs(24 * 3_600);
static PARTS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone)]
pub struct Artifacts {
    dir: PathBuf,
}

/// Why a file was not stored.
#[derive(Debug)]
pub enum UploadError<E> {
    Refused(Refusal),
    /// The sender disconnected.
    Disconnected(E),
}

impl Artifacts {
    /// Creates the directory if it is missing, and removes abandoned incomplete files.
    pub fn open(dir: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&dir)?;
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let half = entry.file_name().to_string_lossy().starts_with(PART);
            if half && entry.metadata()?.modified()?.elapsed().is_ok_and(|age| age > PART_AGE) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(Self { dir })
    }

    pub fn path(&self, artifact: &Artifact) -> PathBuf {
        self.dir.join(&artifact.sha256)
    }

    /// A stored file, by its checksum.
    pub async fn find(&self, field: &str, sha256: &str) -> Result<Artifact, Refusal> {
        image::sha256(&format!("{field}.sha256"), sha256)?;
        match fs::metadata(self.dir.join(sha256)).await {
            Ok(found) => Ok(Artifact { sha256: sha256.into(), size: found.len(), url: None }),
            Err(_) => {
                let problem = format!("{sha256} was not uploaded to this server");
                Err(Refusal::invalid(field, problem, "use `farrier image create NAME --file FILE`"))
            }
        }
    }

    /// Stores a file. `expected` is its checksum, or empty.
    pub async fn receive<E>(
        &self,
        expected: &str,
        pieces: impl Stream<Item = Result<Vec<u8>, E>>,
    ) -> Result<Artifact, UploadError<E>> {
        let (part, file) = self.part().await.map_err(storage_error)?;
        let (sha256, size) = write(file, pieces).await?;
        let wrong = |message: String| {
            UploadError::Refused(Refusal::invalid(
                "sha256",
                message,
                "upload it again, or correct it",
            ))
        };
        if !expected.is_empty() && expected != sha256 {
            return Err(wrong(format!("is {expected}, and the file that arrived has {sha256}")));
        }
        if size == 0 {
            return Err(UploadError::Refused(Refusal::invalid(
                "data",
                "is empty",
                "send the file",
            )));
        }
        fs::rename(&part.0, self.dir.join(&sha256)).await.map_err(storage_error)?;
        sync_dir(&self.dir).await.map_err(storage_error)?;
        Ok(Artifact { sha256, size, url: None })
    }

    /// Creates a new incomplete file. The name must be unique across replicas, which share the
    /// directory and may all have the same process id in containers.
    async fn part(&self) -> std::io::Result<(IncompleteFile, File)> {
        loop {
            let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
            let count = PARTS.fetch_add(1, Ordering::Relaxed);
            let path = self.dir.join(format!("{PART}{}-{since:x}-{count}", std::process::id()));
            match File::create_new(&path).await {
                Ok(file) => return Ok((IncompleteFile(path), file)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes a file that no image uses.
    pub async fn remove(&self, artifact: &Artifact) {
        if artifact.url.is_none()
            && let Err(error) = fs::remove_file(self.path(artifact)).await
        {
            tracing::warn!(%error, sha256 = artifact.sha256, "cannot remove the file of a deleted image");
        }
    }
}

/// An incomplete file; dropped, it is removed unless it was renamed.
struct IncompleteFile(PathBuf);

impl Drop for IncompleteFile {
    fn drop(&mut self) {
        // Fails after a rename, which is fine.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn write<E>(
    mut file: File,
    pieces: impl Stream<Item = Result<Vec<u8>, E>>,
) -> Result<(String, u64), UploadError<E>> {
    let mut digest = Sha256::new();
    let mut size = 0;
    let mut pieces = std::pin::pin!(pieces);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(UploadError::Disconnected)?;
        digest.update(&piece);
        size += piece.len() as u64;
        file.write_all(&piece).await.map_err(storage_error)?;
    }
    file.sync_all().await.map_err(storage_error)?;
    let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((sha256, size))
}

async fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir).await?.sync_all().await
}

fn storage_error<E>(error: std::io::Error) -> UploadError<E> {
    let message =
        format!("the server cannot keep the file: {error}; make room in its images folder");
    UploadError::Refused(Refusal::new(Reason::NoRoom, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn pieces(cut: bool) -> impl Stream<Item = Result<Vec<u8>, &'static str>> {
        let end = if cut { Err("gone") } else { Ok(b"c".to_vec()) };
        stream::iter([Ok(b"a".to_vec()), Ok(b"b".to_vec()), end])
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn files_appear_complete_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::open(dir.path().into()).unwrap();
        let cut = artifacts.receive("", pieces(true)).await;
        assert!(matches!(cut, Err(UploadError::Disconnected("gone"))));
        let wrong = artifacts.receive(&"0".repeat(64), pieces(false)).await;
        assert!(matches!(wrong, Err(UploadError::Refused(_))));
        assert_eq!(names(dir.path()), Vec::<String>::new());
        for _ in 0..2 {
            let taken = artifacts.receive(ABC, pieces(false)).await.unwrap();
            assert_eq!((taken.sha256.as_str(), taken.size), (ABC, 3));
        }
        assert_eq!(names(dir.path()), [ABC]);
        assert_eq!(artifacts.find("file", ABC).await.unwrap().size, 3);
        assert!(artifacts.find("file", "../../etc/passwd").await.is_err());
        assert!(artifacts.find("file", &"0".repeat(64)).await.is_err());
        let half = File::create(dir.path().join(".part-1-1")).await.unwrap().into_std().await;
        Artifacts::open(dir.path().into()).unwrap();
        assert_eq!(names(dir.path()).len(), 2, "somebody may still be sending it");
        half.set_modified(std::time::SystemTime::now() - 2 * PART_AGE).unwrap();
        Artifacts::open(dir.path().into()).unwrap();
        assert_eq!(names(dir.path()), [ABC]);
    }
}
