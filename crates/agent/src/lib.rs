//! What runs in the memory of a machine that was booted over the network to have an image written to its disk.
//!
//! It claims the work with the token of the kernel's command line, chooses the disk, looks whether the image fits, writes it as it
//! arrives, compares the checksum, makes the new system this machine's own, reports, and waits to be told to reboot. Farrier may be away at any
//! moment: what can be tried again is tried for ever, and what has arrived is not fetched twice. It is small, static and waits on threads.
//!
//! The crate `wire` is what is said, `farrier` how; `status` stands between the work and its reports. `image` reads, `disk` writes; `raw`,
//! `qcow2` and `tar` are what is in between. `inventory` and `choose` are about disks, `install` about the system on one, and `inside` keeps that from getting out.

pub mod accounts;
pub mod choose;
pub mod cmdline;
pub mod console;
pub mod disk;
pub mod failure;
pub mod farrier;
pub mod hands;
pub mod host_key;
pub mod http;
pub mod image;
pub mod inside;
pub mod install;
pub mod inventory;
pub mod node;
pub mod pace;
pub mod qcow2;
pub mod random;
pub mod raw;
pub mod status;
pub mod tar;
pub mod volume;
mod work;

use cmdline::Boot;
use console::say;
use farrier::{Farrier, spoken};
use hands::Hands;
use pace::Pace;
use secrecy::{ExposeSecret, SecretString};
pub use status::End;
use status::Status;
use std::path::PathBuf;
use std::thread;
use wire::deploy::{Claim, Disk};
use work::Work;

pub struct Config {
    pub boot: Boot,
    /// Where `/sys` and `/dev` are found.
    pub root: PathBuf,
    pub pace: Pace,
}

/// Does the work there is, and answers how it ends. An error means that it could not even begin.
pub fn run(config: &Config, hands: &dyn Hands) -> Result<End, String> {
    let Config { boot, root, pace } = config;
    let session = SecretString::from(random::session()?);
    let macs = inventory::macs(root);
    let disks = inventory::disks(root);
    let status = Status::default();
    let farrier = Farrier::new(boot.url.clone(), session.clone(), pace, &status);
    let claim = Claim {
        token: boot.token.expose_secret().into(),
        session: session.expose_secret().into(),
        mac: boot.mac.clone(),
        macs,
        disks: disks.iter().map(shown).collect(),
    };
    say(&format!("claiming work from {}", boot.url));
    let granted = match farrier.claim(&claim, &status) {
        Ok(granted) => granted,
        Err(refusal) => {
            say(&format!("the claim was refused: {}", spoken(&refusal)));
            return Ok(End::PowerOff);
        }
    };
    say(&format!("{} is to become {} by {}", granted.machine, granted.hostname, granted.run));
    let work = Work {
        granted: &granted,
        disks: &disks,
        farrier: &farrier,
        status: &status,
        hands,
        root,
        consoles: &boot.consoles,
        pace,
    };
    Ok(thread::scope(|scope| {
        scope.spawn(|| farrier.run_reports(&status));
        work.see_through()
    }))
}

fn shown(disk: &inventory::Disk) -> Disk {
    Disk {
        path: disk.path.clone(),
        size: disk.size,
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        model: disk.model.clone(),
    }
}
