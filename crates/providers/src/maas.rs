//! A client of one MAAS region, over its REST API 2.0.
//!
//! [`Maas`] is an API key at a region. It reads and changes machines, disks, interfaces, tags,
//! pools, zones, subnets, images, events and script results. It keeps no state and decides nothing:
//! it returns what MAAS reports, or a fault with the address, the request and the answer.
//!
//! [`provider`] builds on it. `address` and `key` hold the address and the login, `rate_limit`
//! limits the load, `call` sends one request with its retries, `classify` maps an answer to a
//! fault. The types are in `status`, `machine`, `hardware` and `request`.

mod address;
mod call;
mod classify;
mod hardware;
mod history;
mod key;
mod machine;
mod machines;
mod network;
pub mod provider;
mod rate_limit;
mod region;
mod request;
mod status;
mod storage;
mod untrusted;

pub use address::Address;
pub use hardware::{BlockDevice, Interface, Link, LinkMode, NamedResource, Subnet, Vlan};
pub use history::{
    Event, EventQuery, Events, MAX_EVENT_PAGES, ResultKind, ResultSet, ScriptResult,
};
pub use key::ApiKey;
use machine::known;
pub use machine::{HardwareInfo, MaasPowerState, Machine};
pub use network::{InterfaceChange, LinkRequest};
pub use region::{BootResource, Tag, TagChange, Version, Whoami};
pub use request::{
    Bmc, CommissionRequest, DeployRequest, MachineChange, MachineFilter, NewMachine, PowerConfig,
    ReleaseRequest, StopMode,
};
pub use status::Status;
pub use storage::StorageLayout;
pub use untrusted::read_maas_answer;

use crate::http_client::{Fingerprint, HttpClient, HttpClientSettings, Timeouts, Trust};
use crate::secret_mask::SecretMask;
use model::credential::AllowedAddresses;
use model::fault::Result;
use model::retry::Backoff;
use rate_limit::RateLimiter;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The list of a site with ten thousand machines is one answer, about 20 KB for each machine.
const MAX_ANSWER_BYTES: usize = 512 * 1024 * 1024;

/// Timeouts, retries and rate limits of the requests to a region.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The verification of the region's TLS certificate.
    pub trust: Trust,
    /// The addresses that the region's name may resolve to.
    pub allowed: AllowedAddresses,
    /// The time limit until the connection is established, TLS included.
    pub connect_timeout: Duration,
    /// The time limit from the request to the last byte of its answer. MAAS waits a minute for a
    /// BMC.
    pub answer_timeout: Duration,
    /// The number of times that a request is repeated while MAAS is too busy.
    pub retries: u32,
    /// The delay between retries. `Retry-After` is honoured up to `most`; beyond it is a fault.
    pub backoff: Backoff,
    /// The most requests that may be in flight at once.
    pub max_in_flight: usize,
    /// The most requests that may start per second. Zero: no limit.
    pub per_second: u32,
}

impl Settings {
    pub fn new(trust: Trust) -> Self {
        Self {
            trust,
            allowed: AllowedAddresses::Any,
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(120),
            retries: 4,
            backoff: Backoff { initial: Duration::from_millis(500), max: Duration::from_secs(15) },
            max_in_flight: 8,
            per_second: 20,
        }
    }
}

/// A client of one MAAS region. Clones share the limits.
#[derive(Clone)]
pub struct Maas {
    inner: Arc<Inner>,
    /// Secrets beside the key that the region may quote, such as the password of a BMC.
    mask: SecretMask,
}

struct Inner {
    address: Address,
    key: ApiKey,
    http: HttpClient,
    rate_limiter: RateLimiter,
    retries: u32,
    backoff: Backoff,
}

impl Maas {
    /// Sends nothing. Fails only when the trust settings cannot be used.
    pub fn new(address: Address, key: ApiKey, settings: Settings) -> Result<Self> {
        let timeouts =
            Timeouts { connect: settings.connect_timeout, answer: settings.answer_timeout };
        let http_settings = HttpClientSettings {
            timeouts,
            headers: &[],
            max_answer_bytes: MAX_ANSWER_BYTES,
            // An OAuth nonce is good for one request: MAAS refuses a resend as a wrong login.
            keeps_connection: false,
        };
        let http = HttpClient::new(
            address.endpoint().clone(),
            settings.allowed,
            settings.trust,
            http_settings,
        )?;
        let pace = RateLimiter::new(settings.max_in_flight, settings.per_second);
        let (retries, pauses) = (settings.retries, settings.backoff);
        let inner = Inner { address, key, http, rate_limiter: pace, retries, backoff: pauses };
        Ok(Self { inner: Arc::new(inner), mask: SecretMask::default() })
    }

    /// The same client, which masks these secrets too. Texts are masked before they are cut: of a
    /// secret that is cut in two, no half would be recognised.
    #[must_use]
    pub(crate) fn masking(&self, mask: SecretMask) -> Self {
        Self { inner: Arc::clone(&self.inner), mask }
    }

    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    /// The certificate that the region presented, for the caller to store. `None` without TLS.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.inner.http.fingerprint()
    }
}

impl fmt::Debug for Maas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Maas").field(&self.inner.address).finish()
    }
}
