//! What the agent must remember when it dies: who it is, which task it has begun, and how that ended.
//!
//! Each is a small file in the state folder, written under another name, synced, renamed, and the folder synced: a file is there whole or
//! not at all. The task is here before anything is done for it and its result before anybody hears of it, so that after kill -9 at any
//! point what has ended is only reported again, and what had begun is known to have begun.

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
/// What may be removed before the last file goes.
const FORGOTTEN: [&str; 5] = [ENROLLING, NODE, TASK, CONTACT, LOCK];

/// An enrollment that has been asked for. The session is kept before it is said, so that a lost answer can be asked for again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolling {
    /// The checksum of the token, by which a new one is told from the one that was used.
    pub token_sha256: String,
    pub session: String,
}

/// Who this node is. It holds a secret, so it cannot be printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub token_sha256: String,
    pub session: String,
    pub node: String,
    pub heartbeat_seconds: u64,
}

/// A task that has begun, and how it ended if it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub task: Task,
    pub result: Option<Ended>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub ok: bool,
    pub said: String,
    /// What of the log had not been sent.
    pub log: String,
}

/// When Farrier was last heard of, and what stands in the way. Only for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    pub heard_unix_seconds: Option<u64>,
    #[serde(default)]
    pub trouble: String,
    #[serde(default)]
    pub problems: Vec<String>,
    /// Why the token that is there is of no use to a node that is enrolled.
    #[serde(default)]
    pub refused: String,
}

/// The last word has been reported, and the node is being left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    pub task: String,
}

pub struct Journal {
    folder: PathBuf,
    /// One agent at a time: the kernel lets go of it however the process ends.
    _lock: Option<File>,
}

impl Journal {
    /// For the agent itself.
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
            Ok(()) => Ok(Self { folder: folder.to_owned(), _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(format!(
                "state_dir: another agent is at work in {}; stop it first, or look with `farrier agent status`",
                folder.display()
            )),
            Err(TryLockError::Error(error)) => Err(wrong(&path, error)),
        }
    }

    /// For who only looks.
    pub fn look(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), _lock: None }
    }

    pub fn enrolling(&self) -> Result<Option<Enrolling>, String> {
        self.read(ENROLLING)
    }

    pub fn node(&self) -> Result<Option<Node>, String> {
        self.read(NODE)
    }

    pub fn held(&self) -> Result<Option<Held>, String> {
        self.read(TASK)
    }

    pub fn contact(&self) -> Result<Option<Contact>, String> {
        self.read(CONTACT)
    }

    pub fn leaving(&self) -> Result<Option<Leaving>, String> {
        self.read(LEAVING)
    }

    pub fn keep_enrolling(&self, enrolling: &Enrolling) -> Result<(), String> {
        self.write(ENROLLING, enrolling)
    }

    /// The node first: until it is there, the enrollment is what can be asked again.
    pub fn keep_node(&self, node: &Node) -> Result<(), String> {
        self.write(NODE, node)?;
        self.forget(ENROLLING)
    }

    pub fn forget_enrolling(&self) -> Result<(), String> {
        self.forget(ENROLLING)
    }

    pub fn keep_held(&self, held: &Held) -> Result<(), String> {
        self.write(TASK, held)
    }

    pub fn keep_contact(&self, contact: &Contact) -> Result<(), String> {
        self.write(CONTACT, contact)
    }

    pub fn keep_leaving(&self, leaving: &Leaving) -> Result<(), String> {
        self.write(LEAVING, leaving)
    }

    pub fn forget_held(&self) -> Result<(), String> {
        self.forget(TASK)
    }

    /// Removes everything but the note that the node is being left, which a restart needs to go on.
    pub fn forget_all_but_leaving(&self) -> Result<(), String> {
        FORGOTTEN.iter().try_for_each(|name| self.forget(name))
    }

    /// Removes the rest, and the folder if nobody has put anything else into it.
    pub fn remove(&self) -> Result<(), String> {
        self.forget(LEAVING)?;
        match fs::remove_dir(&self.folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(format!("state_dir: {}: {error}", self.folder.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// What cannot be read is an error and stays where it is: who it was is nothing to guess.
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

    fn forget(&self, name: &str) -> Result<(), String> {
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

    fn held() -> Held {
        let task = Task {
            id: "t-1".into(),
            kind: "node.drain".into(),
            lease_seconds: 30,
            deadline_seconds: 60,
            params: [("a".to_string(), "b".to_string())].into(),
        };
        Held { task, result: None }
    }

    #[test]
    fn what_is_kept_is_found_by_the_next_and_only_one_may_write() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        let journal = Journal::open(&dir).unwrap();
        assert!(Journal::open(&dir).err().unwrap().contains("another agent"));
        assert_eq!(journal.held(), Ok(None));
        journal.keep_held(&held()).unwrap();
        let result = Some(Ended { ok: true, said: "done".into(), log: "l".into() });
        journal.keep_held(&Held { result: result.clone(), ..held() }).unwrap();
        drop(journal);
        let journal = Journal::open(&dir).unwrap();
        assert_eq!(journal.held().unwrap().unwrap().result, result);
        journal.forget_held().unwrap();
        assert_eq!(Journal::look(&dir).held(), Ok(None));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(LOCK))), (0o700, 0o600));
    }

    #[test]
    fn a_file_that_is_broken_is_named_and_left() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        fs::write(folder.path().join(NODE), "{").unwrap();
        let said = journal.node().err().unwrap();
        assert!(said.contains("node.json"), "{said}");
        assert!(folder.path().join(NODE).exists());
    }

    #[test]
    fn half_of_a_write_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        journal.keep_held(&held()).unwrap();
        fs::write(folder.path().join("task.json.new"), "{\"task\":").unwrap();
        assert_eq!(journal.held(), Ok(Some(held())));
        journal.forget_all_but_leaving().unwrap();
        journal.remove().unwrap();
        assert!(!folder.path().exists());
    }
}
