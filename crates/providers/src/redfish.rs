//! A client of one BMC that speaks Redfish.
//!
//! [`Bmc`] is a login at a device; [`System`] is the one computer on it that is meant. Together they
//! read and change what there is: power, boot, virtual media, BIOS, firmware, logs, health. The client
//! knows nothing of runs or keys, keeps nothing, never retries a change and never decides: it reports
//! what the device says now, or a fault that names the address, what was asked and what came back.
//!
//! From the outside in: `endpoint` and `trust` say where and who it is, `transport` how far a request
//! got, `login` and `client` what goes with it, `verdict` and `decode` what an answer means; `system`
//! chooses, and each other file is one thing that can be asked of a System. `quirks` is a table.

mod adapters;
mod bios;
mod boot;
mod certificate;
mod client;
pub(crate) mod decode;
mod doorstep;
mod endpoint;
mod firmware;
mod health;
mod inventory;
mod log;
mod login;
mod media;
mod monitoring;
mod offers;
mod parcel;
mod power;
mod quirks;
mod shelf;
mod system;
mod task;
pub(crate) mod transport;
mod trust;
mod update;
mod verdict;

pub use bios::{Attribute, Bios};
pub use boot::{BootOverride, BootSource, BootSpan};
pub use certificate::Certificate;
pub use doorstep::Doorstep;
pub use endpoint::Endpoint;
pub use firmware::{Components, Firmware};
pub use health::{BadPart, Health, HealthReport, Redundancy};
pub use inventory::{Cpu, Disk, Gpu, Inventory, Memory, Nic};
pub use log::{LogEntry, MAX_LOG_ENTRIES};
pub use media::Media;
pub use monitoring::{Services, Standing, Telemetry};
pub use offers::Glance;
pub use parcel::sending_time;
pub use power::{Power, Reset};
pub use shelf::Shelf;
pub use system::{Overview, System, Wanted};
pub use task::{TaskRef, TaskSeen, TaskState};
pub use trust::{Fingerprint, NoFingerprint, Trust};
pub use update::{Image, Offer, Updates, Way};

use client::Link;
use decode::{Doc, Part};
use model::fault::Fault;
use secrecy::SecretString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Who we are at the BMC.
#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: SecretString,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How to say who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Auth {
    Basic,
    Session,
    /// A session where the device offers them, otherwise basic.
    #[default]
    Auto,
}

/// How long a request may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Until a connection stands, TLS included.
    pub connect: Duration,
    /// From sending a request to the last byte of its answer.
    pub answer: Duration,
    /// Between two looks at something that takes time to change.
    pub look_every: Duration,
}

impl Default for Timeouts {
    /// BMCs are slow: some need ten seconds for a list of firmware.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            look_every: Duration::from_secs(1),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    pub timeouts: Timeouts,
    pub auth: Auth,
}

/// A login at one BMC. Its session ends with [`Bmc::close`], or when it and its Systems are dropped.
pub struct Bmc {
    link: Arc<Link>,
    root: Doc,
    timeouts: Timeouts,
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
        endpoint: Endpoint,
        login: Login,
        trust: Trust,
        settings: Settings,
    ) -> Result<Self, Fault> {
        let (link, root) = Link::open(endpoint, login, trust, &settings).await?;
        Ok(Self { link: Arc::new(link), root, timeouts: settings.timeouts })
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.link.endpoint()
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
