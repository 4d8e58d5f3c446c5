//! SSH: jobs on a host that survive the connection and the process that started them.
//!
//! A [`Host`] is a connection, through any number of jump hosts, to a server with a verified key.
//! Probes use [`Host::run`]. Work is a *job* under an effect key: it starts at most once, runs
//! detached in its own process group, and its output and exit status stay on the host until
//! [`Host::forget`]. The host needs a POSIX shell and a small userland; the scripts are in `sh`.
//!
//! `connect` logs in, `hostkey` verifies servers, `call` runs one command, `script` builds the
//! scripts, `job` starts and stops jobs, `follow` reads their output.

mod address;
mod call;
mod connect;
mod follow;
mod hostkey;
mod job;
mod script;

pub use address::Endpoint;
pub use call::Output;
pub use connect::{Hop, Host, Login, LoginSecret, Route, public_key};
pub use hostkey::{HostKey, Trust};
pub use job::{JobExit, JobStatus, LostReason, StartResult, StopResult};

use model::refusal::Refusal;
use std::time::Duration;

/// Time limits and sizes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For one hop: connect, key exchange and login.
    pub connect_timeout: Duration,
    /// For one request about a job.
    pub call_timeout: Duration,
    /// The time that a server may be silent before a keepalive is sent.
    pub keepalive_interval: Duration,
    /// The bytes of each output stream of a job that the host keeps.
    pub max_output: u64,
    /// The folder in which the host keeps jobs; the default is under /var/tmp.
    pub folder: Option<Folder>,
}

impl Settings {
    /// The number of keepalives that may stay unanswered.
    pub const KEEPALIVES: usize = 3;
    pub const MAX_OUTPUT: u64 = 32 << 20;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(15),
            call_timeout: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(10),
            max_output: Self::MAX_OUTPUT,
            folder: None,
        }
    }
}

/// A folder on a host. It must survive a reboot, or a started job could start again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(String);

impl Folder {
    const MAX_LEN: usize = 200;

    /// Accepts only plain absolute paths, because the path goes into a shell script.
    pub fn parse(path: &str) -> Result<Self, Refusal> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let sound = path.starts_with('/')
            && path.len() > 1
            && path.len() <= Self::MAX_LEN
            && path.chars().all(plain)
            && !path.split('/').any(|part| part == "..");
        if !sound {
            let instead = "write an absolute path of letters, digits, dots, dashes and slashes";
            return Err(Refusal::invalid("ssh.folder", format!("{path:?} is refused"), instead));
        }
        Ok(Self(path.trim_end_matches('/').to_string()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}
