//! A customer's cluster, through the Kubernetes API: its nodes, what a machine needs to join, and how it leaves.
//!
//! A [`Cluster`] is made from a kubeconfig and does one small thing per call, each with a deadline. It keeps nothing
//! and never tries again: what came back is an answer or a fault that names the address, what was asked and what was
//! said. Everything that changes something may be asked for twice; the second time finds it done.
//!
//! `config` reads the kubeconfig, `connect` makes the client, `fault` reads what went wrong; `node`, `join` and `evict`
//! are what can be asked.

mod config;
mod connect;
mod evict;
mod fault;
mod join;
mod node;

pub use evict::{Blocked, Pass, Pod, Step, Waiting};
pub use join::{JoinMaterial, Token};
pub use node::{Condition, Effect, Node, Taint};

use fault::Ask;
use kube::Resource;
use kube::api::{Api, DeleteParams};
use model::fault::{Code, Fault};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use std::fmt::{self, Debug};
use std::future::Future;
use std::time::Duration;

/// The name under which the API server remembers what we set.
const FIELD_MANAGER: &str = "farrier";
/// What Kubernetes allows for the name of an object.
const MAX_NAME_BYTES: usize = 253;

#[derive(Debug, Clone)]
pub struct Settings {
    /// How long one request may take, the connection included.
    pub deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(15) }
    }
}

/// A way to the API of one cluster. A clone is the same way.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    address: String,
    settings: Settings,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.address)
    }
}

impl Cluster {
    /// Reads a kubeconfig and gets ready; nothing is sent yet. Must be called where tokio runs.
    pub fn from_kubeconfig(text: &SecretString, settings: Settings) -> Result<Self, Fault> {
        let access = config::read(text)?;
        let address = access.address.clone();
        let client = connect::client(access)?;
        Ok(Self { client, address, settings })
    }

    /// Where its API is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for one request, no longer than the deadline.
    async fn call<T>(
        &self,
        ask: &Ask<'_>,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Fault> {
        match tokio::time::timeout(self.settings.deadline, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(fault::read(&self.address, ask, &error)),
            Err(_) => Err(fault::late(&self.address, ask, self.settings.deadline)),
        }
    }

    /// The same, where "there is no such thing" is an answer.
    async fn call_opt<T>(
        &self,
        ask: &Ask<'_>,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Option<T>, Fault> {
        let found = async {
            match request.await {
                Ok(answer) => Ok(Some(answer)),
                Err(error) if fault::is_absent(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.call(ask, found).await
    }

    /// Deletes an object. One that is not there is gone already.
    async fn delete<K>(&self, objects: &Api<K>, ask: &Ask<'_>) -> Result<(), Fault>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let params = DeleteParams::default();
        let Some(answer) = self.call_opt(ask, objects.delete(ask.name, &params)).await? else {
            return Ok(());
        };
        // The object, when it is still on its way out; otherwise a word that it is gone.
        let named = |object: K| object.meta().name.as_deref() == Some(ask.name);
        if answer.either(named, |status| status.is_success()) {
            return Ok(());
        }
        Err(fault::garbled(&self.address, ask, "something that was not asked about"))
    }
}

/// A name goes into a path, so it must be a name and nothing else.
fn check_name(what: &str, name: &str) -> Result<(), Fault> {
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
    let said = format!("`{name}` cannot be the name of a {what} in Kubernetes");
    Err(Fault::new(Code::NotSupported, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_lead_elsewhere() {
        for good in ["a", "node-1", "10.0.0.1", "n7.rack-2.example"] {
            assert_eq!(check_name("node", good), Ok(()));
        }
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for bad in ["", "Node", "../pods", "a/b", "a?b", "-a", "a-", ".", "a b", "ä", long.as_str()]
        {
            assert_eq!(check_name("node", bad).unwrap_err().code, Code::NotSupported, "{bad}");
        }
    }
}
