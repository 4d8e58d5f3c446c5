//! A client of one MAAS region, over its REST API 2.0.
//!
//! [`Maas`] is a key at a region. It reads and changes what there is: machines and what becomes of them, their disks and
//! interfaces, tags, pools, zones, subnets, images, events, results. It keeps nothing and never decides: it reports what
//! MAAS says now, or a fault that names the address, what was asked and what came back.
//!
//! [`provider`] is what Farrier does with it. From the outside in: `address` and `key` say where and who, `pace` how much at once,
//! `call` one question with its tries, `verdict` what an answer means; the types are in `status`, `machine`, `parts` and
//! `wanted`, and `machines`, `storage`, `network`, `region` and `history` are what can be asked.

mod address;
mod call;
mod history;
mod key;
mod machine;
mod machines;
mod network;
mod pace;
mod parts;
pub mod provider;
mod region;
mod status;
mod storage;
mod verdict;
mod wanted;

pub use address::Address;
pub use history::{Event, EventQuery, Events, MAX_EVENT_PAGES, Output, ResultKind, ResultSet};
pub use key::ApiKey;
pub use machine::{HardwareInfo, MaasPowerState, Machine};
pub use network::{InterfaceChange, LinkWanted};
pub use parts::{BlockDevice, Interface, Link, LinkMode, Named, Subnet, Vlan};
pub use region::{BootResource, Tag, TagChange, Version, Whoami};
pub use status::Status;
pub use storage::Layout;
pub use wanted::{Bmc, Change, Deploy, Filter, NewMachine, Power, Release, StopMode};

use crate::http_client::{Fingerprint, HttpClient, HttpClientSettings, Timeouts, Trust};
use model::fault::Fault;
use model::retry::Backoff;
use pace::Pace;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The largest answer that is read: a whole site of ten thousand machines is one list, and each is some twenty kilobytes.
const MAX_ANSWER_BYTES: usize = 512 * 1024 * 1024;

/// How patient we are with a region, and how gentle.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How the region proves who it is, where it speaks TLS.
    pub trust: Trust,
    /// Until a connection stands, TLS included.
    pub connect_timeout: Duration,
    /// From sending a request to the last byte of its answer. MAAS itself waits a minute for a power controller.
    pub answer_timeout: Duration,
    /// How often a request that MAAS is too busy for is asked again.
    pub retries: u32,
    /// How long is waited in between. MAAS may want longer, up to `most`; when it wants more than that, nobody waits here.
    pub pauses: Backoff,
    /// How many requests are under way at once.
    pub at_once: usize,
    /// How many requests may begin in a second. Zero means as many as there are.
    pub per_second: u32,
}

impl Settings {
    pub fn new(trust: Trust) -> Self {
        Self {
            trust,
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(120),
            retries: 4,
            pauses: Backoff { first: Duration::from_millis(500), most: Duration::from_secs(15) },
            at_once: 8,
            per_second: 20,
        }
    }
}

/// A key at one MAAS region. A clone is the same client: it shares the limits.
#[derive(Clone)]
pub struct Maas(Arc<Inner>);

struct Inner {
    address: Address,
    key: ApiKey,
    http: HttpClient,
    pace: Pace,
    retries: u32,
    pauses: Backoff,
}

impl Maas {
    /// A client that has said nothing yet. It fails only when what is given to recognise the region by cannot be used.
    pub fn new(address: Address, key: ApiKey, settings: Settings) -> Result<Self, Fault> {
        let timeouts =
            Timeouts { connect: settings.connect_timeout, answer: settings.answer_timeout };
        let http_settings = HttpClientSettings {
            timeouts,
            headers: &[],
            max_answer_bytes: MAX_ANSWER_BYTES,
            // What says who we are is good for one request, and MAAS refuses the second as a wrong login.
            keeps_connection: false,
        };
        let http = HttpClient::new(address.endpoint().clone(), settings.trust, http_settings)?;
        let pace = Pace::new(settings.at_once, settings.per_second);
        let (retries, pauses) = (settings.retries, settings.pauses);
        Ok(Self(Arc::new(Inner { address, key, http, pace, retries, pauses })))
    }

    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// The certificate that was seen, for the caller to record. None without TLS.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.0.http.fingerprint()
    }
}

impl fmt::Debug for Maas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Maas").field(&self.0.address).finish()
    }
}
