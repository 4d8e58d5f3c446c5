//! A client of one BMC that speaks Redfish.
//!
//! [`Bmc`] is a login at a device; [`System`] is one computer behind it. Together they read and
//! change power, boot, virtual media, BIOS, firmware, logs and health. The client is stateless,
//! knows no runs or effect keys, and never retries a change: it returns what the device reports
//! now, or a fault that names the address, the request and the response.
//!
//! `login` and `client` send requests, `classification` and `decode` read responses, `system`
//! selects the System, `quirks` lists vendor differences. Each other file is one kind of request.

mod adapters;
mod address;
mod bios;
mod boot;
mod capabilities;
mod classification;
mod client;
mod decode;
mod firmware;
mod health;
mod inventory;
mod log;
mod login;
mod media;
mod monitoring;
mod power;
mod quirks;
mod shelf;
mod system;
mod task;
mod unauthenticated;
mod untrusted;
mod update;

pub use crate::peer_login::Login;
pub use address::BmcAddress;
pub use bios::{Attribute, Bios};
pub use boot::{BootOverride, BootSource, BootSpan};
pub use capabilities::SystemIdentity;
pub use firmware::{Components, Firmware};
pub use health::{Health, HealthReport, Redundancy, UnhealthyComponent};
pub use inventory::{Cpu, Disk, Gpu, Inventory, Memory, Nic};
pub use log::{LogEntry, MAX_LOG_ENTRIES};
pub use media::Media;
pub use monitoring::{LoginPrivilege, Services, Telemetry};
pub use power::{Power, Reset};
pub use shelf::Shelf;
pub use system::{System, SystemSelector, SystemSummary};
pub use task::{TaskRef, TaskState, TaskStatus};
pub use unauthenticated::UnauthenticatedBmc;
pub use untrusted::read_redfish_answer;
pub use update::{FirmwareImage, UpdateMethod, UpdateService, UpdateServiceState};

use crate::http_client::{Endpoint, Fingerprint, Timeouts, Trust};
use client::RedfishClient;
use decode::{JsonNode, Resource};
use model::fault::Result;
use std::sync::Arc;
use std::time::Duration;

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
    /// The interval between two reads of a value that takes time to change.
    pub poll_interval: Duration,
    pub auth: Auth,
}

impl Default for Settings {
    fn default() -> Self {
        let poll_interval = Duration::from_secs(1);
        Self { timeouts: Timeouts::default(), poll_interval, auth: Auth::default() }
    }
}

/// A login at one BMC. Its session ends with [`Bmc::close`] or when it and its Systems are dropped.
pub struct Bmc {
    link: Arc<RedfishClient>,
    root: Resource,
    /// The path of the System that the address names.
    system: Option<String>,
    poll_interval: Duration,
}

/// The facts about the BMC in its service root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    pub vendor: Option<String>,
    pub product: Option<String>,
    pub redfish_version: Option<String>,
}

impl About {
    fn of(root: JsonNode<'_>) -> Self {
        Self {
            vendor: root.text("Vendor"),
            product: root.text("Product"),
            redfish_version: root.text("RedfishVersion"),
        }
    }
}

impl Bmc {
    /// Reads the service root and logs in, so a refused login fails here.
    pub async fn connect(
        address: BmcAddress,
        login: Login,
        trust: Trust,
        settings: Settings,
    ) -> Result<Self> {
        let BmcAddress { endpoint, system } = address;
        let (link, root) = RedfishClient::open(endpoint, login, trust, &settings).await?;
        let poll_interval = settings.poll_interval;
        Ok(Self { link: Arc::new(link), root, system, poll_interval })
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.link.endpoint()
    }

    /// True if the address names a System.
    pub fn names_system(&self) -> bool {
        self.system.is_some()
    }

    /// The certificate of the peer, for the caller to pin. None without TLS.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.link.fingerprint()
    }

    pub fn about(&self) -> About {
        About::of(self.root.root())
    }

    /// Logs out. A later request logs in again.
    pub async fn close(self) {
        self.link.close().await;
    }
}
