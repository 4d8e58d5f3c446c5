//! Binds credentials that an older farrier has stored to the peers that records name.
//!
//! A start after an upgrade finds credentials without a binding. Each is bound to exactly the peers
//! that it was used for: the BMCs and hosts of machines, switches and power shelves, the MAAS of
//! sites, and the jump hosts of the configuration. A record that is added later is not among them.

use super::SecretStore;
use model::credential::{BoundHost, CredentialPolicy, Peer, PeerBinding, PeerProtocol};
use model::filter::Filter;
use model::here;
use model::id::{MachineId, SiteId};
use model::lifecycle::{DeviceSpec, Lifecycle};
use model::machine::MachineSpec;
use model::node::Node;
use model::power_shelf::PowerShelf;
use model::site::{Site, SiteSpec};
use model::switch::Switch;
use providers::peer_login::login_peer;
use providers::state_store::Secret;
use providers::{kubernetes, maas, ssh};
use std::collections::BTreeMap;
use store::{Cause, CredentialRow, NewEvent, Result, Store, Tx};

/// The records of one read.
const PAGE: usize = 500;

/// The credentials that the configuration names for devices that name none.
#[derive(Debug, Clone, Default)]
pub struct DefaultCredentials {
    pub bmc: String,
    pub ssh: String,
    pub jump: String,
    pub jump_hosts: Vec<String>,
}

/// A credential that was bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundCredential {
    pub name: String,
    pub policy: CredentialPolicy,
}

impl SecretStore {
    /// Binds every credential that has no binding yet.
    pub async fn bind_unbound(
        &self,
        defaults: &DefaultCredentials,
    ) -> Result<Vec<BoundCredential>> {
        let unbound = self.unbound().await?;
        if unbound.is_empty() {
            return Ok(Vec::new());
        }
        let mut named = NamedPeers::read(&self.store, defaults).await?;
        let mut bound = Vec::new();
        for row in unbound {
            let policy = match self.cipher.open(&row.name, &row.sealed) {
                Ok(Secret::Kubeconfig { text }) => kubeconfig_policy(&text),
                Ok(Secret::Password { .. } | Secret::Key { .. } | Secret::MaasKey { .. })
                | Err(_) => named.policies.remove(&row.name).unwrap_or_default(),
            };
            let input = (row.name.clone(), policy.clone(), (self.clock)());
            let written = self.store.retry_write("bind_credential", input, |input, tx| {
                Box::pin(bind(tx, &input.0, &input.1, input.2))
            });
            if written.await? {
                bound.push(BoundCredential { name: row.name, policy });
            }
        }
        Ok(bound)
    }

    async fn unbound(&self) -> Result<Vec<CredentialRow>> {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let input = (Filter::default(), after);
            let rows = self.store.scan(input, |(filter, after), tx| {
                Box::pin(tx.credentials(filter, after, PAGE as i64))
            });
            let rows = rows.await?.items;
            let Some(last) = rows.last() else { return Ok(found) };
            after = last.name.clone();
            found.extend(rows.into_iter().filter(|row| row.policy.is_none()));
        }
    }
}

/// A kubeconfig is sent to the server that it names, and to no other.
pub(super) fn kubeconfig_policy(text: &secrecy::SecretString) -> CredentialPolicy {
    let server = kubernetes::server(text).and_then(|peer| PeerBinding::of(&peer));
    CredentialPolicy { peers: server.into_iter().collect(), plain_http: false }
}

/// False: another replica has bound it, or it is gone.
async fn bind(
    tx: &mut Tx,
    name: &str,
    policy: &CredentialPolicy,
    now: model::time::Timestamp,
) -> Result<bool> {
    let Some(row) = tx.credential(name).await?.filter(|row| row.policy.is_none()) else {
        return Ok(false);
    };
    let (known, version) = (Some(row.version), tx.last_credential_version(name).await?);
    let row = CredentialRow {
        version: version.max(row.version) + 1,
        policy: Some(policy.clone()),
        ..row
    };
    let message = format!("bound to {} peers that records name", policy.peers.len());
    let event = NewEvent {
        cause: Cause::Engine,
        actor: "farrier".into(),
        message,
        decided_by: here!().into(),
        at: now,
    };
    tx.put_credential(&row, known, &event).await?;
    Ok(true)
}

/// The peers that records name, by credential.
#[derive(Debug, Default)]
struct NamedPeers {
    defaults: DefaultCredentials,
    policies: BTreeMap<String, CredentialPolicy>,
}

impl NamedPeers {
    async fn read(store: &Store, defaults: &DefaultCredentials) -> Result<Self> {
        let mut named = Self { defaults: defaults.clone(), ..Self::default() };
        for host in &defaults.jump_hosts {
            named.add_host(&defaults.jump, host);
        }
        let mut sites = BTreeMap::new();
        for site in records::<Site>(store).await? {
            named.add_site(&site);
            sites.insert(site.id(), site.spec);
        }
        for device in records::<Switch>(store).await? {
            named.add_device(device.spec);
        }
        for device in records::<PowerShelf>(store).await? {
            named.add_device(device.spec);
        }
        // MAAS gets the password of the BMC of its machines.
        let nodes = records::<Node>(store).await?;
        let managed: BTreeMap<MachineId, SiteId> =
            nodes.into_iter().filter_map(|node| Some((node.machine, node.site?))).collect();
        let mut after = None;
        loop {
            let page = store.read((Filter::default(), after), |(filter, after), tx| {
                Box::pin(tx.machines(filter, after.as_deref(), PAGE as i64))
            });
            let page = page.await?;
            for machine in page.machines {
                let site = managed.get(&machine.id);
                let site = site.and_then(|id| Some((id, sites.get(id)?)));
                named.add_machine(&machine.spec, site);
            }
            after = page.next;
            if after.is_none() {
                return Ok(named);
            }
        }
    }

    fn add_device(&mut self, spec: DeviceSpec) {
        self.add_machine(&MachineSpec::from(spec), None);
    }

    fn add_machine(&mut self, spec: &MachineSpec, site: Option<(&SiteId, &SiteSpec)>) {
        let bmc = first(&spec.bmc_credential, &self.defaults.bmc);
        if let Ok(peer) = login_peer(&spec.bmc_endpoint) {
            self.add(&bmc, &peer, PeerBinding::of(&peer));
            if let Some((id, site)) = site {
                self.add_region(&bmc, id, site);
            }
        }
        let ssh = first(&spec.ssh_credential, &self.defaults.ssh);
        self.add_host(&ssh, &spec.ssh_endpoint);
    }

    fn add_host(&mut self, credential: &str, endpoint: &str) {
        if let Ok(endpoint) = ssh::Endpoint::parse("ssh_endpoint", endpoint) {
            let peer = endpoint.peer();
            self.add(credential, &peer, PeerBinding::of(&peer));
        }
    }

    fn add_site(&mut self, site: &Site) {
        self.add_region(&site.spec.maas_credential, &site.id(), &site.spec);
    }

    fn add_region(&mut self, credential: &str, id: &SiteId, site: &SiteSpec) {
        if let Ok(address) = maas::Address::parse(&site.maas_url) {
            let peer = address.peer();
            let binding = PeerBinding::Site { id: id.clone(), at: BoundHost::of(&peer) };
            self.add(credential, &peer, Some(binding));
        }
    }

    fn add(&mut self, credential: &str, peer: &Peer, binding: Option<PeerBinding>) {
        let Some(binding) = binding.filter(|_| !credential.is_empty()) else { return };
        let policy = self.policies.entry(credential.to_string()).or_default();
        policy.plain_http |= peer.protocol == PeerProtocol::Http;
        if !policy.peers.contains(&binding) {
            policy.peers.push(binding);
        }
    }
}

fn first(own: &str, usual: &str) -> String {
    if own.is_empty() { usual.to_string() } else { own.to_string() }
}

/// All readable records of a kind.
async fn records<R: Lifecycle>(store: &Store) -> Result<Vec<R>> {
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page =
            store.read(after.clone(), |after, tx| Box::pin(tx.records_of_kind::<R>(after, PAGE)));
        let page = page.await?;
        let Some((last, _)) = page.last() else { return Ok(found) };
        after = last.clone();
        found.extend(page.into_iter().filter_map(|(_, record)| record.ok()));
    }
}
