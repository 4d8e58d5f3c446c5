//! The Kubernetes API of a customer's cluster: its nodes, how a machine joins, and how it leaves.
//!
//! A [`Cluster`] is made from a kubeconfig and sends one request per call, each with a deadline. It
//! keeps no state: it returns an answer, or a fault with the address, the request and what the
//! server said. Every change is idempotent: a second call finds it done. Only a refused login is
//! repeated, because an API server that has just started refuses everyone (`access`).
//!
//! `config` and `kubeconfig` read the kubeconfig, `client` sends requests, `object` has the API
//! types, `fault` classifies failures; `access`, `node`, `join`, `evict`, `preview`, `event` and
//! `inspect` are the requests, and `rights` are the rights that they need.

mod access;
mod client;
mod config;
mod event;
mod evict;
mod fault;
mod inspect;
mod join;
mod kubeadm;
mod kubeconfig;
mod node;
mod object;
mod preview;
mod rights;

pub use access::Right;
pub use event::NodeEvent;
pub use evict::{BlockedPod, EvictionPass, PodEviction, PodName, TerminatingPod};
pub use inspect::ServerVersion;
pub use join::{JoinMaterial, Token};
pub use kubeadm::{PRELUDE, check_config, find_config_problem, join_script};
pub use node::{Condition, Node, NodeTaintEffect, Taint};
pub use preview::{DisruptionBudget, PodDecision, PodPreview};
pub use rights::{RIGHTS, RightsRule, manifest};

use client::{ApiRequest, Client, RequestError};
use fault::ApiCall;
use model::credential::Peer;
use model::fault::{Fault, FaultCode, Result};
use model::time::Timestamp;
use object::{Object, Page, Status};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest name that Kubernetes allows for an object.
const MAX_NAME_BYTES: usize = 253;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The time limit of one request, the connection included.
    pub deadline: Duration,
    /// The time for which a refused login is repeated before it counts, if the server says that it
    /// is ready.
    pub refusal_grace: Duration,
    /// The folder of tokens that are renewed by other means. None: no kubeconfig may name a file.
    pub token_folder: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(15),
            refusal_grace: Duration::from_secs(20),
            token_folder: None,
        }
    }
}

/// The API of one cluster. A clone shares its connections.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    address: String,
    /// The name of the credential with the kubeconfig, for faults.
    credential: Option<String>,
    expires_at: Option<Timestamp>,
    settings: Settings,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.address)
    }
}

impl Cluster {
    /// Reads a kubeconfig and prepares the client; sends nothing. Needs a tokio runtime.
    pub fn from_kubeconfig(text: &SecretString, settings: Settings) -> Result<Self> {
        let access = config::read(text, settings.token_folder.as_deref())?;
        let (address, expires_at) = (access.address.clone(), access.expires_at);
        let client = Client::new(access)?;
        Ok(Self { client, address, credential: None, expires_at, settings })
    }

    /// The same, of a credential that faults name.
    pub fn from_credential(name: &str, text: &SecretString, settings: Settings) -> Result<Self> {
        let made = Self::from_kubeconfig(text, settings).map_err(|fault| {
            let message = format!("the credential {name:?} cannot be used: {}", fault.message);
            Fault { message, ..fault }.with(|facts| facts.credential = Some(name.into()))
        })?;
        Ok(Self { credential: Some(name.into()), ..made })
    }

    /// The time when the token or the client certificate of the kubeconfig expires, where it says
    /// so.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }

    fn of_credential(&self, fault: Fault) -> Fault {
        match &self.credential {
            Some(name) => fault.with(|facts| facts.credential = Some(name.clone())),
            None => fault,
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request once, and waits no longer than the deadline.
    async fn send_once(&self, call: &ApiCall<'_>, request: &ApiRequest) -> Result<Answer> {
        let sent = self.client.send(request);
        match tokio::time::timeout(self.settings.deadline, sent).await {
            Ok(Ok(text)) => Ok(Ok(text)),
            Ok(Err(RequestError::Refused(status))) => Ok(Err(status)),
            Ok(Err(error)) => Err(self.of_credential(fault::classify(&self.address, call, &error))),
            Err(_) => Err(fault::late(&self.address, call, self.settings.deadline)),
        }
    }

    /// Sends a request and reads its answer as JSON.
    async fn send<T: DeserializeOwned>(
        &self,
        call: &ApiCall<'_>,
        request: &ApiRequest,
    ) -> Result<T> {
        match self.exchange(call, request).await? {
            Ok(text) => self.decode(call, &text),
            Err(status) => Err(self.refused(call, status)),
        }
    }

    /// The same, with `None` when the object does not exist.
    async fn send_opt<T: DeserializeOwned>(
        &self,
        call: &ApiCall<'_>,
        request: &ApiRequest,
    ) -> Result<Option<T>> {
        match self.exchange(call, request).await? {
            Ok(text) => self.decode(call, &text).map(Some),
            Err(status) if status.is_not_found() => Ok(None),
            Err(status) => Err(self.refused(call, status)),
        }
    }

    fn decode<T: DeserializeOwned>(&self, call: &ApiCall<'_>, text: &str) -> Result<T> {
        serde_json::from_str(text)
            .map_err(|error| fault::classify(&self.address, call, &RequestError::NotJson(error)))
    }

    fn refused(&self, call: &ApiCall<'_>, status: Status) -> Fault {
        self.of_credential(fault::classify(&self.address, call, &RequestError::Refused(status)))
    }

    async fn list<T: DeserializeOwned>(
        &self,
        call: &ApiCall<'_>,
        (path, select): (&str, &[(&str, &str)]),
        (page_size, max_pages): (u32, usize),
    ) -> Result<ListResult<T>> {
        let (mut items, mut next) = (Vec::new(), None::<String>);
        for _ in 0..max_pages {
            let request = ApiRequest::list(path, select, page_size, next.as_deref());
            let page: Page<T> = self.send(call, &request).await?;
            items.extend(page.items);
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(ListResult::Complete(items));
            }
        }
        Ok(ListResult::PageLimit(items.len()))
    }

    /// Deletes an object. One that is absent counts as deleted.
    async fn delete(&self, collection: &str, call: &ApiCall<'_>) -> Result<()> {
        let request = ApiRequest::delete(format!("{collection}/{}", call.name));
        let Some(answer) = self.send_opt::<Value>(call, &request).await? else { return Ok(()) };
        if confirms_deletion(answer, call.name)
            .map_err(|error| fault::classify(&self.address, call, &RequestError::NotJson(error)))?
        {
            return Ok(());
        }
        Err(fault::garbled(&self.address, call, "something that was not asked about"))
    }
}

/// The text of an answer, or the server's refusal.
type Answer = Result<String, Status>;

/// Checks a kubeconfig before it is stored. Sends nothing. Returns when it expires.
pub fn check_kubeconfig(
    text: &SecretString,
    token_folder: Option<&Path>,
) -> Result<Option<Timestamp>> {
    Ok(config::read(text, token_folder)?.expires_at)
}

/// The server that a kubeconfig names, as the peer of a login.
pub fn server(text: &SecretString) -> Option<Peer> {
    config::server(text)
}

/// The time when a stored kubeconfig expires, where it says so.
pub fn expiry(text: &SecretString) -> Option<Timestamp> {
    config::expiry(text)
}

/// A complete list, or the number of items read when the page limit was reached.
enum ListResult<T> {
    Complete(Vec<T>),
    PageLimit(usize),
}

/// The server answers with the object while finalizers hold it, otherwise with a status.
fn confirms_deletion(answer: Value, name: &str) -> Result<bool, serde_json::Error> {
    if answer["kind"] == "Status" {
        return Ok(serde_json::from_value::<Status>(answer)?.is_success());
    }
    let object: Object = serde_json::from_value(answer)?;
    Ok(object.metadata.name.as_deref() == Some(name))
}

/// A name becomes part of a path, so other characters are refused.
fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    let sound = bytes.len() <= MAX_NAME_BYTES
        && bytes.iter().copied().all(plain)
        && edge(bytes.first())
        && edge(bytes.last());
    if sound {
        return Ok(());
    }
    let message = format!("`{name}` cannot be the name of a {what} in Kubernetes");
    Err(Fault::new(FaultCode::NotSupported, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_names_are_accepted() {
        for good in ["a", "node-1", "10.0.0.1", "n7.rack-2.example"] {
            assert_eq!(check_name("node", good), Ok(()));
        }
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for bad in ["", "Node", "../pods", "a/b", "a?b", "-a", "a-", ".", "a b", "ä", long.as_str()]
        {
            assert_eq!(check_name("node", bad).unwrap_err().code, FaultCode::NotSupported, "{bad}");
        }
    }
}
