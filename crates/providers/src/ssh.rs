//! SSH: commands on a host that outlive the connection, and us.
//!
//! A [`Host`] is a connection, through as many jump hosts as it takes, to a server whose key was looked at first. Short
//! questions are asked with [`Host::run`]. Work is a *job* under a key: it begins at most once, runs detached in a process
//! group of its own, and what it says and how it ends lies in a folder on the host until [`Host::forget`]. The host needs
//! a POSIX shell and a small userland, no systemd and nothing of ours; the scripts are in the folder `sh`.
//!
//! `address` is where, `hostkey` whom we trust, `connect` how we get in, `call` one question, `script` what is sent,
//! `job` what is asked of a job, `follow` what it says.

mod address;
mod call;
mod connect;
mod follow;
mod hostkey;
mod job;
mod script;

pub use address::Endpoint;
pub use call::Output;
pub use connect::{Hop, Host, Login, Proof, Route, public_key};
pub use hostkey::{HostKey, Trust};
pub use job::{End, JobStatus, Lost, Started, Stopped};

use model::refusal::Refusal;
use std::time::Duration;

/// How patient we are, and how much we take.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For one hop: to connect, to agree on keys, and to log in.
    pub connect_timeout: Duration,
    /// For one question about a job.
    pub call_timeout: Duration,
    /// How long a silent server is left alone before it is asked whether it is there.
    pub keepalive_interval: Duration,
    /// How many bytes of each output of a job the host keeps.
    pub max_output: u64,
    /// Where the host keeps jobs, if not in the usual place.
    pub folder: Option<Folder>,
}

impl Settings {
    /// How many questions whether it is there a server may leave unanswered.
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

/// A folder on a host. It must outlive a reboot, or a job that had begun may begin again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(String);

impl Folder {
    const MAX_LEN: usize = 200;

    /// Takes plain absolute paths only, as it ends up in a shell.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_plain_absolute_path() {
        assert_eq!(Folder::parse("/var/lib/jobs/").unwrap().as_str(), "/var/lib/jobs");
        for bad in ["", "/", "jobs", "/a b", "/a'b", "/a$b", "/a/../b", "/a\nb"] {
            assert!(Folder::parse(bad).is_err(), "{bad:?}");
        }
    }
}
