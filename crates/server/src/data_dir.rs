//! The data directory: private to the server's user, and for SQLite locked against other servers.

use crate::config::Config;
use crate::private_files::make_private;
use crate::process_limits;
use crate::serve::ServeError;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The database in the data directory.
pub const DATABASE_FILE: &str = "farrier.db";

/// Creates the data directory, private to this user, and locks it for SQLite against other servers.
pub fn prepare(config: &Config) -> Result<Option<File>, ServeError> {
    process_limits::keep_memory_private();
    let dir = &config.data_dir;
    let refused = |what: &str, error: std::io::Error| {
        ServeError::Refused(format!("{what} {}: {error}; choose another --data-dir", dir.display()))
    };
    let changed = make_private(dir).map_err(|error| refused("cannot make private", error))?;
    if changed > 0 {
        tracing::warn!(dir = %dir.display(), changed, "other users had permissions on files of the data directory; Farrier has removed them");
    }
    if !config.database_url.is_empty() {
        return Ok(None);
    }
    lock(dir).map(Some).map_err(|error| match error {
        LockError::AlreadyLocked(holder) => ServeError::Refused(format!(
            "another farrier serve{holder} uses {}; stop it, or choose another --data-dir",
            dir.display()
        )),
        LockError::Io(error) => refused("cannot write to", error),
    })
}

enum LockError {
    AlreadyLocked(String),
    Io(std::io::Error),
}

fn lock(dir: &Path) -> Result<File, LockError> {
    let path = dir.join("lock");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(LockError::Io)?;
    match file.try_lock() {
        Ok(()) => {
            // The pid helps an operator who finds the lock; a failed write does no harm.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(std::fs::TryLockError::WouldBlock) => {
            let pid = std::fs::read_to_string(&path).unwrap_or_default();
            let pid = pid.trim();
            Err(LockError::AlreadyLocked(if pid.is_empty() {
                String::new()
            } else {
                format!(" (pid {pid})")
            }))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(LockError::Io(error)),
    }
}
