//! The persistent state of the agent: its identity, the task that it has begun, and the result of
//! that task.
//!
//! Each is a small file in the state directory, written under a temporary name, synced, renamed,
//! and followed by a sync of the directory: a file is there complete or not at all. A task is
//! stored before it is executed, and its result before it is reported. So after kill -9 at any
//! point, a finished task is only reported again, and a begun task is known to have begun.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use wire::node::Task;

const LOCK: &str = "lock";
const ENROLLING: &str = "enrolling.json";
const NODE: &str = "node.json";
const TASK: &str = "task.json";
const CONTACT: &str = "contact.json";
const LEAVING: &str = "leaving.json";
/// The files that are removed before the last one.
const FORGOTTEN: [&str; 5] = [ENROLLING, NODE, TASK, CONTACT, LOCK];

/// A requested enrollment. The session is stored before it is sent, so that a request with a lost
/// answer can be repeated.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEnrollment {
    /// The checksum of the token, to distinguish a new token from the used one.
    pub token_sha256: String,
    pub session: String,
}

/// The identity of this node. It holds a secret, so it has no `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    pub token_sha256: String,
    pub session: String,
    pub node: String,
    pub heartbeat_seconds: u64,
}

/// A task that has begun, and its result if it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTask {
    pub task: Task,
    pub result: Option<TaskResult>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    pub ok: bool,
    #[serde(rename = "said")]
    pub message: String,
    /// The part of the log that has not been sent.
    pub log: String,
}

/// The time of the last answer of Farrier, and the present problem. Only shown to operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    pub heard_unix_seconds: Option<u64>,
    #[serde(default)]
    pub trouble: String,
    #[serde(default)]
    pub problems: Vec<String>,
    /// The reason why the current token is refused, for a node that is already enrolled.
    #[serde(default)]
    pub refused: String,
}

/// Marker: the last report has been accepted, and the agent is uninstalling itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UninstallMarker {
    pub task: String,
}

pub struct Journal {
    folder: PathBuf,
    /// Only one agent at a time; the kernel releases the lock however the process ends.
    lock: Option<File>,
}

impl Drop for Journal {
    /// A process that is being started has a copy of the file until it executes its program: the
    /// lock would outlive the journal with that copy.
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Journal {
    /// Opens the journal for the agent itself, under its lock.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let wrong = |what: &Path, error: io::Error| {
            format!("state_dir: {}: {error}; is it on a disk that can be written?", what.display())
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| wrong(folder, error))?;
        let path = folder.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| wrong(&path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { folder: folder.to_owned(), lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(format!(
                "state_dir: another agent is at work in {}; stop it first, or look with `farrier agent status`",
                folder.display()
            )),
            Err(TryLockError::Error(error)) => Err(wrong(&path, error)),
        }
    }

    /// Opens the journal for readers, without the lock.
    pub fn open_read_only(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), lock: None }
    }

    pub fn pending_enrollment(&self) -> Result<Option<PendingEnrollment>, String> {
        self.read(ENROLLING)
    }

    pub fn node(&self) -> Result<Option<NodeIdentity>, String> {
        self.read(NODE)
    }

    pub fn stored_task(&self) -> Result<Option<StoredTask>, String> {
        self.read(TASK)
    }

    pub fn contact(&self) -> Result<Option<Contact>, String> {
        self.read(CONTACT)
    }

    pub fn uninstall_marker(&self) -> Result<Option<UninstallMarker>, String> {
        self.read(LEAVING)
    }

    pub fn store_enrollment(&self, enrolling: &PendingEnrollment) -> Result<(), String> {
        self.write(ENROLLING, enrolling)
    }

    /// Writes the node first: until it is stored, the enrollment can be repeated.
    pub fn store_node(&self, node: &NodeIdentity) -> Result<(), String> {
        self.write(NODE, node)?;
        self.remove_file(ENROLLING)
    }

    pub fn remove_enrollment(&self) -> Result<(), String> {
        self.remove_file(ENROLLING)
    }

    pub fn store_task(&self, claimed: &StoredTask) -> Result<(), String> {
        self.write(TASK, claimed)
    }

    pub fn store_contact(&self, contact: &Contact) -> Result<(), String> {
        self.write(CONTACT, contact)
    }

    pub fn store_uninstall_marker(&self, leaving: &UninstallMarker) -> Result<(), String> {
        self.write(LEAVING, leaving)
    }

    pub fn remove_task(&self) -> Result<(), String> {
        self.remove_file(TASK)
    }

    /// Removes everything but the marker of the uninstall, which a restart needs to continue.
    pub fn remove_all_but_uninstall_marker(&self) -> Result<(), String> {
        FORGOTTEN.iter().try_for_each(|name| self.remove_file(name))
    }

    /// Removes the marker, and the directory if nothing else is in it.
    pub fn remove(&self) -> Result<(), String> {
        self.remove_file(LEAVING)?;
        match fs::remove_dir(&self.folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(format!("state_dir: {}: {error}", self.folder.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A file that cannot be read is an error and is not removed: the identity must not be guessed.
    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        let path = self.folder.join(name);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                format!(
                    "state_dir: {} is broken ({error}); if it is of no use, remove it",
                    path.display()
                )
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("state_dir: {}: {error}", path.display())),
        }
    }

    fn write(&self, name: &str, content: &impl Serialize) -> Result<(), String> {
        let path = self.folder.join(name);
        let written = || -> io::Result<()> {
            let new = self.folder.join(format!("{name}.new"));
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(&serde_json::to_vec(content)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            self.sync()
        };
        written().map_err(|error| format!("state_dir: {}: {error}", path.display()))
    }

    fn remove_file(&self, name: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        for path in [self.folder.join(format!("{name}.new")), path.clone()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(format!("state_dir: {}: {error}", path.display()));
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.sync().map_err(|error| format!("state_dir: {}: {error}", path.display()))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn stored_task() -> StoredTask {
        let task = Task {
            id: "t-1".into(),
            kind: "node.drain".into(),
            lease_seconds: 30,
            deadline_seconds: 60,
            params: [("a".to_string(), "b".to_string())].into(),
        };
        StoredTask { task, result: None }
    }

    #[test]
    fn state_survives_a_restart_and_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let journal = Journal::open(&dir).unwrap();
        assert!(Journal::open(&dir).err().unwrap().contains("another agent"));
        assert_eq!(journal.stored_task(), Ok(None));
        journal.store_task(&stored_task()).unwrap();
        let result = Some(TaskResult { ok: true, message: "done".into(), log: "l".into() });
        journal.store_task(&StoredTask { result: result.clone(), ..stored_task() }).unwrap();
        drop(journal);
        let journal = Journal::open(&dir).unwrap();
        assert_eq!(journal.stored_task().unwrap().unwrap().result, result);
        journal.remove_task().unwrap();
        assert_eq!(Journal::open_read_only(&dir).stored_task(), Ok(None));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(LOCK))), (0o700, 0o600));
    }

    #[test]
    fn broken_files_are_named_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        fs::write(folder.path().join(NODE), "{").unwrap();
        let message = journal.node().err().unwrap();
        assert!(message.contains("node.json"), "{message}");
        assert!(folder.path().join(NODE).exists());
    }

    #[test]
    fn incomplete_writes_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        journal.store_task(&stored_task()).unwrap();
        fs::write(folder.path().join("task.json.new"), "{\"task\":").unwrap();
        assert_eq!(journal.stored_task(), Ok(Some(stored_task())));
        journal.remove_all_but_uninstall_marker().unwrap();
        journal.remove().unwrap();
        assert!(!folder.path().exists());
    }
}
