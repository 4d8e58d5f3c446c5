//! The files of images, named by their checksums. A file appears complete or not at all.

mod space;

pub use space::SpaceLimits;

use futures_util::{Stream, StreamExt};
use model::image::{self, Artifact};
use model::refusal::{Reason, Refusal};
use sha2::{Digest, Sha256};
use space::IncompleteFile;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;

/// Prefix of incomplete files.
const PART: &str = ".part-";
/// A sender that is silent for this long has gone; the space it reserved is needed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A file that no image names is removed when room is needed, but not while its image is created.
const UNUSED_AGE: Duration = Duration::from_secs(3_600);
/// The free space is read again after so many bytes.
const RECHECK_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone)]
pub struct Artifacts {
    dir: PathBuf,
    limits: SpaceLimits,
}

/// An upload that has its space, and nothing of its content yet.
pub struct Upload {
    part: IncompleteFile,
    file: File,
    size: u64,
    /// None: an own file, which is small.
    limits: Option<SpaceLimits>,
}

/// The reason why a file was not stored.
#[derive(Debug)]
pub enum UploadError<E> {
    Refused(Refusal),
    /// The sender disconnected.
    Disconnected(E),
}

impl Artifacts {
    /// Creates the directory if it is missing, and removes incomplete files that were abandoned.
    pub fn open(dir: PathBuf, limits: SpaceLimits) -> std::io::Result<Self> {
        std::fs::create_dir_all(&dir)?;
        space::remove_abandoned(&dir)?;
        Ok(Self { dir, limits })
    }

    pub fn path(&self, artifact: &Artifact) -> PathBuf {
        self.dir.join(&artifact.sha256)
    }

    /// A stored file, by its checksum.
    pub async fn find(&self, field: &str, sha256: &str) -> Result<Artifact, Refusal> {
        image::sha256(&format!("{field}.sha256"), sha256)?;
        let name = sha256.to_string();
        match self.with_folder(move |dir| space::touch(dir, &name)).await {
            Ok(size) => Ok(Artifact { sha256: sha256.into(), size, url: None }),
            Err(_) => {
                let problem = format!("{sha256} was not uploaded to this server");
                Err(Refusal::invalid(field, problem, "use `farrier image create NAME --file FILE`"))
            }
        }
    }

    /// Reserves the space of a file, or refuses it before anything of it is kept.
    pub async fn reserve(&self, size: u64) -> Result<Upload, Refusal> {
        self.reserve_within(Some(self.limits), size).await
    }

    /// Stores a small file of this server. A full disk must not keep the server from starting.
    pub async fn store_own(&self, content: Vec<u8>) -> Result<Artifact, Refusal> {
        let upload = self.reserve_within(None, content.len() as u64).await?;
        let pieces = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(content)]);
        match self.receive(upload, "", pieces).await {
            Ok(file) => Ok(file),
            Err(UploadError::Refused(refusal)) => Err(refusal),
            Err(UploadError::Disconnected(never)) => match never {},
        }
    }

    async fn reserve_within(
        &self,
        limits: Option<SpaceLimits>,
        size: u64,
    ) -> Result<Upload, Refusal> {
        let reserved = self.with_folder(move |dir| space::reserve(dir, limits, size)).await;
        let (part, file) = reserved.map_err(|error| storage_refusal(&error))??;
        Ok(Upload { part, file: File::from_std(file), size, limits })
    }

    /// Stores the file of an upload. `expected` is its checksum, or empty.
    pub async fn receive<E>(
        &self,
        upload: Upload,
        expected: &str,
        pieces: impl Stream<Item = Result<Vec<u8>, E>>,
    ) -> Result<Artifact, UploadError<E>> {
        // The file stays open, and locked, until it has its name.
        let Upload { part, mut file, size, limits } = upload;
        let (sha256, received) = self.write(&mut file, size, limits, pieces).await?;
        let wrong = |field: &str, message: String| {
            let instead = "upload it again, or correct it";
            UploadError::Refused(Refusal::invalid(field, message, instead))
        };
        if received != size {
            return Err(wrong("size", format!("is {size}, and {received} bytes arrived")));
        }
        if !expected.is_empty() && expected != sha256 {
            let message = format!("is {expected}, and the file that arrived has {sha256}");
            return Err(wrong("sha256", message));
        }
        fs::rename(&part.0, self.dir.join(&sha256)).await.map_err(storage_error)?;
        sync_dir(&self.dir).await.map_err(storage_error)?;
        Ok(Artifact { sha256, size, url: None })
    }

    async fn write<E>(
        &self,
        file: &mut File,
        size: u64,
        limits: Option<SpaceLimits>,
        pieces: impl Stream<Item = Result<Vec<u8>, E>>,
    ) -> Result<(String, u64), UploadError<E>> {
        let mut digest = Sha256::new();
        let (mut received, mut checked) = (0, 0);
        let mut pieces = std::pin::pin!(pieces);
        loop {
            let piece = match tokio::time::timeout(IDLE_TIMEOUT, pieces.next()).await {
                Ok(Some(piece)) => piece.map_err(UploadError::Disconnected)?,
                Ok(None) => break,
                Err(_) => return Err(UploadError::Refused(silent_refusal())),
            };
            received += piece.len() as u64;
            if received > size {
                let problem = format!("is {size}, and more bytes arrived");
                let instead = "send the size of the whole file";
                return Err(UploadError::Refused(Refusal::invalid("size", problem, instead)));
            }
            if let Some(limits) = limits.filter(|_| received - checked >= RECHECK_BYTES) {
                checked = received;
                let room = self.with_folder(move |dir| space::check_reserve(dir, limits)).await;
                room.map_err(storage_error)?.map_err(UploadError::Refused)?;
            }
            digest.update(&piece);
            file.write_all(&piece).await.map_err(storage_error)?;
        }
        file.sync_all().await.map_err(storage_error)?;
        let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((sha256, received))
    }

    /// Removes the stored files that are not in `used` and that no image is about to name.
    pub async fn remove_unused(&self, used: BTreeSet<String>) -> Result<(), Refusal> {
        let keep = move |name: &str| used.contains(name);
        self.with_folder(move |dir| space::remove_unused(dir, &keep, UNUSED_AGE))
            .await
            .map_err(|error| storage_refusal(&error))
    }

    /// Runs a function on a thread that may block: it waits for the lock of the folder.
    async fn with_folder<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let dir = self.dir.clone();
        tokio::task::spawn_blocking(move || run(&dir)).await.map_err(std::io::Error::other)?
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

async fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir).await?.sync_all().await
}

fn storage_error<E>(error: std::io::Error) -> UploadError<E> {
    UploadError::Refused(storage_refusal(&error))
}

fn storage_refusal(error: &std::io::Error) -> Refusal {
    let message =
        format!("the server cannot keep the file: {error}; make room in its images folder");
    Refusal::new(Reason::NoRoom, message)
}

fn silent_refusal() -> Refusal {
    let problem = format!("did not arrive: nothing came for {} s", IDLE_TIMEOUT.as_secs());
    Refusal::invalid("data", problem, "upload it again")
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
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    const LIMITS: SpaceLimits = SpaceLimits { quota_bytes: 10, reserve_bytes: 0 };

    fn open(dir: &Path) -> Artifacts {
        Artifacts::open(dir.into(), LIMITS).unwrap()
    }

    impl Artifacts {
        async fn upload(&self, size: u64, expected: &str, cut: bool) -> Result<Artifact, String> {
            let upload = self.reserve(size).await.map_err(|refusal| refusal.message)?;
            self.receive(upload, expected, pieces(cut)).await.map_err(|error| match error {
                UploadError::Refused(refusal) => refusal.message,
                UploadError::Disconnected(why) => why.into(),
            })
        }
    }

    #[tokio::test]
    async fn files_appear_complete_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = open(dir.path());
        for (size, expected, cut, why) in [
            (3, "", true, "gone"),
            (3, &*"0".repeat(64), false, "sha256"),
            (2, "", false, "more bytes arrived"),
            (4, "", false, "3 bytes arrived"),
        ] {
            let message = artifacts.upload(size, expected, cut).await.unwrap_err();
            assert!(message.contains(why), "{message}");
        }
        assert_eq!(names(dir.path()), [".lock"]);
        for _ in 0..2 {
            let taken = artifacts.upload(3, ABC, false).await.unwrap();
            assert_eq!((taken.sha256.as_str(), taken.size), (ABC, 3));
        }
        assert_eq!(names(dir.path()), [".lock", ABC]);
        assert_eq!(artifacts.find("file", ABC).await.unwrap().size, 3);
        assert!(artifacts.find("file", "../../etc/passwd").await.is_err());
        assert!(artifacts.find("file", &"0".repeat(64)).await.is_err());
    }

    /// Two replicas share the folder. Each counts what the other has promised.
    #[tokio::test]
    async fn concurrent_uploads_are_counted_together() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (open(dir.path()), open(dir.path()));
        let promised = one.reserve(8).await.unwrap();
        let refused = other.reserve(3).await.err().unwrap();
        assert_eq!(refused.reason, Reason::NoRoom);
        assert!(refused.message.contains("2 bytes are left"), "{refused:?}");
        assert_eq!(names(dir.path()).len(), 2, "nothing of the refused file is kept");
        other.upload(2, "", false).await.unwrap_err();
        drop(promised);
        other.upload(3, ABC, false).await.unwrap();
    }

    #[tokio::test]
    async fn an_abandoned_file_is_removed_and_one_that_is_being_sent_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = open(dir.path());
        let sending = artifacts.reserve(1).await.unwrap();
        // A killed process leaves its file, and its lock is gone.
        std::fs::write(dir.path().join(".part-1-1"), "half").unwrap();
        open(dir.path());
        assert_eq!(names(dir.path()).len(), 2, "{:?}", names(dir.path()));
        assert!(sending.part.0.exists());
        std::fs::write(dir.path().join(".part-1-1"), "12345678").unwrap();
        artifacts.reserve(9).await.expect("an abandoned file takes no room");
    }

    #[tokio::test]
    async fn a_file_without_an_image_makes_room_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let artifacts = open(dir.path());
        artifacts.upload(3, ABC, false).await.unwrap();
        let age = |age: Duration| {
            let file = std::fs::File::options().append(true).open(dir.path().join(ABC)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        };
        artifacts.remove_unused(BTreeSet::new()).await.unwrap();
        assert!(dir.path().join(ABC).exists(), "its image may be under way");
        age(2 * UNUSED_AGE);
        artifacts.remove_unused(BTreeSet::from([ABC.into()])).await.unwrap();
        artifacts.find("file", ABC).await.unwrap();
        artifacts.remove_unused(BTreeSet::new()).await.unwrap();
        assert!(dir.path().join(ABC).exists(), "an image is being created from it");
        age(2 * UNUSED_AGE);
        artifacts.remove_unused(BTreeSet::new()).await.unwrap();
        assert!(!dir.path().join(ABC).exists());
    }
}
