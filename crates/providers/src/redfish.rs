//! A client of one BMC that speaks Redfish.
//!
//! [`Bmc`] is a login at a device; [`System`] is the one computer on it that is meant. Together they
//! read and change what there is: power, boot, virtual media, BIOS, firmware, logs, health. The client
//! knows nothing of runs or keys, keeps nothing, never retries a change and never decides: it reports
//! what the device says now, or a fault that names the address, what was asked and what came back.
//!
//! `address` is where it is, `login` and `client` send requests, `verdict` and `decode` read responses;
//! `system` chooses the System, and each other file is one kind of request. `quirks` is a table.

mod adapters;
mod address;
mod bios;
mod boot;
mod client;
mod decode;
mod firmware;
mod health;
mod inventory;
mod log;
mod login;
mod media;
mod monitoring;
mod offers;
mod power;
mod quirks;
mod shelf;
mod system;
mod task;
mod unauthenticated;
mod update;
mod verdict;

pub use crate::peer_login::Login;
pub use address::BmcAddress;
pub use bios::{Attribute, Bios};
pub use boot::{BootOverride, BootSource, BootSpan};
pub use firmware::{Components, Firmware};
pub use health::{BadPart, Health, HealthReport, Redundancy};
pub use inventory::{Cpu, Disk, Gpu, Inventory, Memory, Nic};
pub use log::{LogEntry, MAX_LOG_ENTRIES};
pub use media::Media;
pub use monitoring::{Services, Standing, Telemetry};
pub use offers::Glance;
pub use power::{Power, Reset};
pub use shelf::Shelf;
pub use system::{Overview, System, Wanted};
pub use task::{TaskRef, TaskSeen, TaskState};
pub use unauthenticated::UnauthenticatedBmc;
pub use update::{Image, Offer, Updates, Way};

use crate::http_client::{Endpoint, Fingerprint, Timeouts, Trust};
use client::Link;
use decode::{Doc, Part};
use model::fault::Fault;
use std::sync::Arc;
use std::time::Duration;

/// How to say who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Auth {
    Basic,
    Session,
    /// A session where the device offers them, otherwise basic.
    #[default]
    Auto,
}

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub timeouts: Timeouts,
    /// Between two reads of something that takes time to change.
    pub poll_interval: Duration,
    pub auth: Auth,
}

impl Default for Settings {
    fn default() -> Self {
        let poll_interval = Duration::from_secs(1);
        Self { timeouts: Timeouts::default(), poll_interval, auth: Auth::default() }
    }
}

/// A login at one BMC. Its session ends with [`Bmc::close`], or when it and its Systems are dropped.
pub struct Bmc {
    link: Arc<Link>,
    root: Doc,
    /// The path of the System that the address names.
    system: Option<String>,
    poll_interval: Duration,
}

/// What kind of BMC it is, as far as it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    pub vendor: Option<String>,
    pub product: Option<String>,
    pub redfish_version: Option<String>,
}

impl About {
    fn of(root: Part<'_>) -> Self {
        Self {
            vendor: root.text("Vendor"),
            product: root.text("Product"),
            redfish_version: root.text("RedfishVersion"),
        }
    }
}

impl Bmc {
    /// Reads the service's root and logs in. A login that is refused is found here.
    pub async fn connect(
        address: BmcAddress,
        login: Login,
        trust: Trust,
        settings: Settings,
    ) -> Result<Self, Fault> {
        let BmcAddress { endpoint, system } = address;
        let (link, root) = Link::open(endpoint, login, trust, &settings).await?;
        let poll_interval = settings.poll_interval;
        Ok(Self { link: Arc::new(link), root, system, poll_interval })
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.link.endpoint()
    }

    /// Whether its address names the System that is meant.
    pub fn names_system(&self) -> bool {
        self.system.is_some()
    }

    /// The certificate that was seen, for the caller to record. None without TLS.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.link.fingerprint()
    }

    pub fn about(&self) -> About {
        About::of(self.root.root())
    }

    /// Logs out. A request that comes afterwards logs in again.
    pub async fn close(self) {
        self.link.close().await;
    }
}
