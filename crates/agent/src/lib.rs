//! The agent of the deploy environment, which runs from memory on a machine that was booted over
//! the network to be imaged; and in `node` the agent of a node in service.
//!
//! The deploy agent claims the deployment with the token in the kernel command line, chooses the
//! disk, checks that the image fits, writes it as it arrives, verifies its checksum, configures the
//! new system for this machine, reports, and waits for the command to reboot. Farrier may be
//! unreachable at any time: retryable requests are retried for ever, and bytes that have arrived
//! are not fetched again. The binary is small and static, and uses threads instead of async.
//!
//! `wire` has the messages, `deploy_client` sends them, `status` passes progress from the
//! `deployment` to the reports. `image` reads, `disk` writes; `raw`, `qcow2` and `tar` convert
//! between them. `inventory` and `disk_selector` find the disk, `install` configures the system on
//! it, and `confined_fs` confines all paths to that system.

pub mod accounts;
pub mod cmdline;
pub mod confined_fs;
pub mod console;
pub mod deploy_client;
mod deployment;
pub mod disk;
pub mod disk_selector;
pub mod failure;
pub mod host_key;
pub mod http;
pub mod image;
pub mod install;
pub mod inventory;
pub mod node;
pub mod platform;
pub mod qcow2;
pub mod random;
pub mod raw;
pub mod status;
pub mod tar;
pub mod timing;
pub mod volume;
pub mod wire;

use cmdline::Boot;
use console::say;
use deploy_client::{DeployClient, describe_refusal};
use deployment::Work;
use platform::Platform;
use secrecy::{ExposeSecret, SecretString};
pub use status::End;
use status::Status;
use std::path::PathBuf;
use std::thread;
use timing::Pace;
use wire::{Claim, DiskSeen};

pub struct Config {
    pub boot: Boot,
    /// The directory that contains `sys` and `dev`.
    pub root: PathBuf,
    pub pace: Pace,
}

/// Carries out the deployment and returns how to end. An error means that it could not even be
/// claimed.
pub fn run(config: &Config, platform: &dyn Platform) -> Result<End, String> {
    let Config { boot, root, pace } = config;
    let session = SecretString::from(random::session()?);
    let macs = inventory::list_macs(root);
    let disks = inventory::list_disks(root);
    let status = Status::default();
    let client = DeployClient::new(boot.url.clone(), session.clone(), pace, &status);
    let claim = Claim {
        token: boot.token.expose_secret(),
        session: session.expose_secret(),
        mac: &boot.mac,
        macs: &macs,
        disks: disks.iter().map(shown).collect(),
    };
    say(&format!("claiming work from {}", boot.url));
    let granted = match client.claim(&claim, &status) {
        Ok(granted) => granted,
        Err(refusal) => {
            say(&format!("the claim was refused: {}", describe_refusal(&refusal)));
            return Ok(End::PowerOff);
        }
    };
    say(&format!("{} is to become {} by {}", granted.machine, granted.hostname, granted.run));
    let work = Work {
        granted: &granted,
        disks: &disks,
        client: &client,
        status: &status,
        platform,
        root,
        consoles: &boot.consoles,
        pace,
    };
    Ok(thread::scope(|scope| {
        scope.spawn(|| client.run_reports(&status));
        work.see_through()
    }))
}

fn shown(disk: &inventory::DiskInfo) -> DiskSeen<'_> {
    DiskSeen {
        path: &disk.path,
        size: disk.size,
        serial: &disk.serial,
        wwn: &disk.wwn,
        model: &disk.model,
    }
}
