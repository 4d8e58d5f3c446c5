//! The agent of the deploy environment, which runs from memory on a machine that was booted over
//! the network to be imaged; and in `node` the agent of a node in service.
//!
//! The deploy agent claims the deployment with the token in the kernel command line, chooses the
//! disk, checks that the image fits and that it is the one of the signed manifest, writes it,
//! configures the new system for this machine, reports, and waits for the command to reboot.
//! Farrier may be unreachable at any time: retryable requests are retried for ever, and a download
//! continues where it stopped. The binary is small and static, and uses threads instead of async.
//!
//! The crate `wire` has the messages, `deploy_client` sends them, `status` passes progress from the
//! `deployment` to the reports. `manifest` verifies what is to be done, `verified_image` the image.
//! `image` reads, `disk` writes; `raw`, `qcow2` and `tar` convert
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
pub mod manifest;
pub mod node;
pub mod platform;
pub mod qcow2;
pub mod random;
pub mod raw;
pub mod status;
pub mod tar;
pub mod timing;
pub mod verified_image;
pub mod volume;

use cmdline::BootParameters;
use console::print_line;
use deploy_client::{DeployClient, describe_refusal};
use deployment::Deployment;
use failure::Failure;
use manifest::ManifestKey;
use platform::Platform;
use secrecy::{ExposeSecret, SecretString};
use status::DeployStatus;
pub use status::FinalAction;
use std::path::PathBuf;
use std::thread;
use timing::Timing;
use wire::deploy::{Claim, DeploymentFailure, Disk};

pub struct DeployConfig {
    pub boot: BootParameters,
    /// The directory that contains `sys` and `dev`.
    pub root: PathBuf,
    pub timing: Timing,
}

/// Carries out the deployment and returns how to end. An error means that it could not even be
/// claimed.
pub fn run(config: &DeployConfig, platform: &dyn Platform) -> Result<FinalAction, String> {
    let DeployConfig { boot, root, timing } = config;
    let session = SecretString::from(random::new_session()?);
    let key = ManifestKey::find(root, boot.key.as_ref())?;
    let macs = inventory::list_macs(root);
    let disks = inventory::list_disks(root);
    let status = DeployStatus::default();
    let client = DeployClient::new(boot.url.clone(), session.clone(), timing, &status);
    let claim = Claim {
        token: boot.token.expose_secret().into(),
        session: session.expose_secret().into(),
        mac: boot.mac.clone(),
        macs: macs.clone(),
        disks: disks.iter().map(shown).collect(),
    };
    print_line(&format!("claiming work from {}", boot.url));
    let signed = match client.claim(&claim, &status) {
        Ok(signed) => signed,
        Err(refusal) => {
            print_line(&format!("the claim was refused: {}", describe_refusal(&refusal)));
            return Ok(FinalAction::PowerOff);
        }
    };
    let granted = match key.verify(&signed, session.expose_secret(), &macs) {
        Ok(granted) => granted,
        Err(message) => return Ok(refuse_manifest(&client, &status, &message)),
    };
    print_line(&format!(
        "{} is to become {} by {}",
        granted.machine, granted.hostname, granted.run
    ));
    let work = Deployment {
        granted: &granted,
        disks: &disks,
        client: &client,
        status: &status,
        platform,
        root,
        consoles: &boot.consoles,
        timing,
    };
    Ok(thread::scope(|scope| {
        scope.spawn(|| client.run_reports(&status));
        work.run()
    }))
}

/// Reports that the manifest is not believed. Nothing was touched.
fn refuse_manifest(client: &DeployClient, status: &DeployStatus, message: &str) -> FinalAction {
    let message = format!("{message}; nothing was written");
    thread::scope(|scope| {
        scope.spawn(|| client.run_reports(status));
        status.set_failed(Failure::new(DeploymentFailure::ChecksumWrong, message));
        status.wait_for_final_action()
    })
}

fn shown(disk: &inventory::DiskInfo) -> Disk {
    Disk {
        path: disk.path.clone(),
        size: disk.size,
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        model: disk.model.clone(),
    }
}
