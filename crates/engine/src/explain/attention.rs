//! Everything that needs a person, of every kind, worst first.
//!
//! All candidates are ranked from their records; only the first ones of that order are explained,
//! because an explanation asks the gates. Of each, only the command that is shown is asked about.

use super::Explained;
use super::offered::Offer;
use super::worked_on::work_on_nodes;
use crate::Engine;
use crate::secret::{CredentialInfo, SecretStore};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use model::device::Device;
use model::filter::Filter;
use model::health::AlertClass;
use model::host::{Host, HostState};
use model::lifecycle::Lifecycle;
use model::node::{Node, NodeState};
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::refusal::Reason;
use model::rollout::Rollout;
use model::switch::Switch;
use model::target::TargetKind;
use model::time::Timestamp;
use model::why::{
    Explanation, Rank, Urgency, explain_break_glass, explain_expiry, explain_unreadable,
    rank_alerts, rank_break_glass, rank_device, rank_expiry, rank_host, rank_machine, rank_node,
    rank_rack, rank_rollout, rank_run, rank_site,
};
use std::collections::BTreeMap;
use store::{
    MachineSymptom, RecordPage, RecordSymptom, Result, RowKind, StoreError, UnreadableRow,
};

/// The most objects that one search reads. The searches for the worst come first, and each has its
/// own limit.
const MAX_FOUND: usize = 2_000;
/// How many objects are explained concurrently. More would keep other readers of the database
/// waiting.
const EXPLAINED_AT_ONCE: usize = 8;
/// The state of racks, switches and power shelves that a person must resolve.
const IN_ERROR: &[&str] = &["Error"];
const QUARANTINED: &[&str] = &[NodeState::Quarantined.as_str()];
/// A node waits for its onboarding, which may have stopped.
const ONBOARDING: &[&str] = &[NodeState::BootstrapIssued.as_str(), NodeState::Enrolling.as_str()];
const OFFLINE: &[&str] = &[NodeState::Offline.as_str()];
/// The kind of an operation in the list.
const OPERATION: &str = "operation";
/// The kind of a stored row that is no object of its own.
const ROW: &str = "row";
/// The kind of a credential in the list, and the kind of credential that expires.
const CREDENTIAL: &str = "credential";
const KUBECONFIG: &str = "kubeconfig";
/// The kind of a break-glass in the list.
const APPROVAL: &str = "approval";
/// The most kubeconfigs that are read.
const MAX_KUBECONFIGS: i64 = 1_000;
/// The most unreadable rows that are listed; `farrier db check` names all.
const MAX_UNREADABLE: usize = 100;

/// An object that needs a person.
#[derive(Debug, Clone)]
pub struct AttentionItem {
    pub id: String,
    pub kind: &'static str,
    pub urgency: Urgency,
    pub explained: Explained,
}

/// An explained object, with its rank after the explanation.
type RankedItem = (Rank, AttentionItem);

#[derive(Debug, Clone, Default)]
pub struct Attention {
    /// Worst first.
    pub items: Vec<AttentionItem>,
    /// The urgencies of the objects that come after them and were not explained.
    pub rest: Vec<Urgency>,
    /// More objects may need a person than were found.
    pub more: bool,
}

/// The ranks of the objects that need a person.
#[derive(Default)]
struct Candidates {
    found: BTreeMap<(&'static str, String), Rank>,
    /// The explanations of those that are no objects of the engine, by the same key.
    explained: BTreeMap<(&'static str, String), Explanation>,
    more: bool,
}

impl Candidates {
    /// The worst rank of an object counts.
    fn add(&mut self, kind: &'static str, id: impl Into<String>, rank: Option<Rank>) {
        let Some(rank) = rank else { return };
        let known = self.found.entry((kind, id.into())).or_insert(rank);
        *known = rank.min(*known);
    }

    fn add_records<R: Lifecycle>(
        &mut self,
        page: &RecordPage<R>,
        rank: impl Fn(&R) -> Option<Rank>,
    ) {
        self.more |= page.next.is_some();
        for record in &page.records {
            self.add(R::KIND.as_str(), record.head().id.as_str(), rank(record));
        }
    }
}

impl Engine {
    /// Objects that need a person: the worst first, then the longest waiting. At most `limit` of
    /// them are explained.
    /// `secrets`: the kubeconfigs that expire need a person too.
    pub async fn attention(
        &self,
        limit: usize,
        secrets: Option<&SecretStore>,
    ) -> Result<Attention> {
        let mut candidates = Candidates::default();
        self.find_machines(&mut candidates).await?;
        self.find_alerts(&mut candidates).await?;
        self.find_racks_and_sites(&mut candidates).await?;
        self.find_devices::<Switch>(&mut candidates).await?;
        self.find_devices::<PowerShelf>(&mut candidates).await?;
        self.find_nodes(&mut candidates).await?;
        // A child run is overdue together with its parent.
        let overdue = self.runs().overdue().await?;
        for run in overdue.iter().filter(|run| run.spec.parent_run.is_none()) {
            candidates.add(OPERATION, run.spec.id.as_str(), Some(rank_run(run)));
        }
        if let Some(secrets) = secrets {
            self.find_expiring(secrets, &mut candidates).await?;
        }
        self.find_break_glass(&mut candidates).await?;
        self.find_unreadable(&mut candidates).await?;
        if self.caller().sees_a_part() {
            self.retain_visible(&mut candidates).await?;
        }
        let Candidates { found, explained: mut known, more } = candidates;
        let mut ranked: Vec<_> = found.into_iter().map(|(object, rank)| (rank, object)).collect();
        ranked.sort();
        let rest = ranked.split_off(limit.min(ranked.len()));
        let mut explanations: Vec<BoxFuture<'_, Result<Option<RankedItem>>>> = Vec::new();
        for (rank, key) in ranked {
            let known = known.remove(&key);
            explanations.push(Box::pin(self.explain_ranked(rank, known, key)));
        }
        let explained = stream::iter(explanations).buffered(EXPLAINED_AT_ONCE);
        let explained: Vec<Option<RankedItem>> = explained.try_collect().await?;
        let mut items: Vec<RankedItem> = explained.into_iter().flatten().collect();
        items.sort_by_key(|(rank, _)| *rank);
        let items = items.into_iter().map(|(_, item)| item).collect();
        Ok(Attention { items, rest: rest.iter().map(|(rank, _)| rank.urgency).collect(), more })
    }

    /// Explains an object of the list, unless that is done already. None: it was deleted since the
    /// list was read.
    async fn explain_ranked(
        &self,
        rank: Rank,
        known: Option<Explanation>,
        (kind, id): (&'static str, String),
    ) -> Result<Option<RankedItem>> {
        let explained = match known {
            Some(explanation) => Explained { explanation, ..Explained::default() },
            None => match self.explain_offering(&id, Offer::First).await {
                Err(StoreError::Refused(gone)) if gone.reason == Reason::NotFound => {
                    return Ok(None);
                }
                explained => explained?,
            },
        };
        let urgency = rank.urgency.explained(&explained.explanation);
        let item = AttentionItem { id, kind, urgency, explained };
        Ok(Some((Rank { urgency, ..rank }, item)))
    }

    /// Leaves out what the caller may not see: other objects than machines, nodes and operations,
    /// and those of them whose labels are not in its scope.
    async fn retain_visible(&self, candidates: &mut Candidates) -> Result<()> {
        let kinds = [TargetKind::Machine.as_str(), Node::KIND.as_str(), OPERATION];
        candidates.found.retain(|(kind, _), _| kinds.contains(kind));
        let ids = candidates.found.keys().map(|(_, id)| id.clone()).collect();
        let visible = self.visible_objects(ids).await?;
        candidates.found.retain(|(_, id), _| visible.contains(id));
        Ok(())
    }

    async fn find_machines(&self, candidates: &mut Candidates) -> Result<()> {
        let machine = TargetKind::Machine.as_str();
        for symptom in [
            MachineSymptom::NeedsIntervention,
            MachineSymptom::OpenDiskWrite,
            MachineSymptom::NoSystem,
            MachineSymptom::Unreachable,
            MachineSymptom::BmcUnreachable,
            MachineSymptom::NetworkBoot,
            MachineSymptom::FailedImaging,
        ] {
            let found = self.store().scan(symptom, |symptom, tx| {
                Box::pin(tx.machines_with_symptom(*symptom, MAX_FOUND))
            });
            let page = found.await?;
            self.store().unreadable().record(&page.unreadable);
            candidates.more |= page.next.is_some();
            for one in &page.machines {
                candidates.add(machine, one.id.as_str(), rank_machine(one));
            }
        }
        let interval = self.settings().host_firmware_upgrade_retry_interval;
        let hosts = self.find_records::<Host>(RecordSymptom::InState(&[HostState::FAILED])).await?;
        candidates.more |= hosts.next.is_some();
        for host in &hosts.records {
            candidates.add(machine, host.head.id.as_str(), rank_host(host, interval));
        }
        Ok(())
    }

    async fn find_alerts(&self, candidates: &mut Candidates) -> Result<()> {
        let prevents = AlertClass::PreventStateChanges.as_str();
        let filter = Filter::named("classification", prevents);
        let found = self.health().list(filter, "", MAX_FOUND).await?;
        candidates.more |= found.items.len() == MAX_FOUND;
        for (object, reports) in &found.items {
            candidates.add(object.kind.as_str(), object.as_str(), rank_alerts(reports));
        }
        Ok(())
    }

    async fn find_racks_and_sites(&self, candidates: &mut Candidates) -> Result<()> {
        let now = self.now();
        for states in [IN_ERROR, Rack::WAITING] {
            let racks = self.find_records::<Rack>(RecordSymptom::InState(states)).await?;
            candidates.add_records(&racks, |rack| rank_rack(rack, now));
        }
        let sites = self.sites().list(Filter::default(), None, MAX_FOUND).await?;
        candidates.add_records(&sites, rank_site);
        let rollouts =
            self.find_records::<Rollout>(RecordSymptom::InState(Rollout::STOPPED)).await?;
        candidates.add_records(&rollouts, rank_rollout);
        Ok(())
    }

    async fn find_devices<D: Device>(&self, candidates: &mut Candidates) -> Result<()> {
        let now = self.now();
        for symptom in [
            RecordSymptom::InState(IN_ERROR),
            RecordSymptom::Unreachable,
            RecordSymptom::InState(D::WAITING),
        ] {
            let devices = self.find_records::<D>(symptom).await?;
            candidates.add_records(&devices, |device| rank_device(device, now));
        }
        Ok(())
    }

    async fn find_nodes(&self, candidates: &mut Candidates) -> Result<()> {
        let now = self.now();
        for states in [QUARANTINED, ONBOARDING, OFFLINE, Node::WAITING] {
            let nodes = self.find_records::<Node>(RecordSymptom::InState(states)).await?;
            let input = nodes.records.clone();
            let read = self.store().scan(input, |nodes, tx| Box::pin(work_on_nodes(tx, nodes)));
            let work = read.await?;
            candidates.add_records(&nodes, |node| rank_node(node, *work.get(&node.head.id)?, now));
        }
        Ok(())
    }

    /// The kubeconfigs whose token or client certificate has ended, or ends soon.
    async fn find_expiring(
        &self,
        secrets: &SecretStore,
        candidates: &mut Candidates,
    ) -> Result<()> {
        let now = self.now();
        let found = secrets.list(Filter::named("kind", KUBECONFIG), "", MAX_KUBECONFIGS).await?;
        for CredentialInfo { name, expires_at, .. } in found.items {
            let Some(expires_at) = expires_at else { continue };
            let rank = rank_expiry(expires_at, now);
            candidates.add(CREDENTIAL, name.as_str(), rank);
            let explanation = explain_expiry(&name, expires_at, now);
            candidates.explained.insert((CREDENTIAL, name), explanation);
        }
        Ok(())
    }

    /// The requests that went past the gate `approval` and were not reviewed.
    async fn find_break_glass(&self, candidates: &mut Candidates) -> Result<()> {
        let found =
            self.store().scan((), |(), tx| Box::pin(tx.unreviewed_approvals(MAX_FOUND as i64)));
        for approval in found.await? {
            let id = approval.id.to_string();
            candidates.add(APPROVAL, id.clone(), Some(rank_break_glass(&approval)));
            candidates.explained.insert((APPROVAL, id), explain_break_glass(&approval));
        }
        Ok(())
    }

    /// The rows that the searches above, other lists, the probes or a check could not decode.
    async fn find_unreadable(&self, candidates: &mut Candidates) -> Result<()> {
        let known = self.store().unreadable().rows(MAX_UNREADABLE + 1);
        candidates.more |= known.len() > MAX_UNREADABLE;
        for UnreadableRow { kind, id, .. } in known.into_iter().take(MAX_UNREADABLE) {
            let input = (kind, id.clone());
            let row = self
                .store()
                .scan(input, |(kind, id), tx| Box::pin(tx.unreadable_row(*kind, id)))
                .await?;
            let Some(row) = row else {
                self.store().unreadable().forget(kind, &id);
                continue;
            };
            let key = (object_kind(kind), id);
            // It is not known since when.
            let rank = Rank::new(Urgency::Stopped, Timestamp::default());
            let kind = Some(kind.as_str());
            let explanation = explain_unreadable(&row.id, &row.to_string(), kind);
            candidates.add(key.0, key.1.clone(), Some(rank));
            candidates.explained.insert(key, explanation);
        }
        Ok(())
    }

    async fn find_records<R: Lifecycle>(&self, symptom: RecordSymptom) -> Result<RecordPage<R>> {
        let found = self
            .store()
            .scan(symptom, |symptom, tx| Box::pin(tx.records_with_symptom(*symptom, MAX_FOUND)));
        let page = found.await?;
        self.store().unreadable().record(&page.unreadable);
        Ok(page)
    }
}

/// The kind of the object whose own row this is.
fn object_kind(kind: RowKind) -> &'static str {
    match kind {
        RowKind::Run => OPERATION,
        RowKind::Machine
        | RowKind::Rack
        | RowKind::Switch
        | RowKind::PowerShelf
        | RowKind::Node
        | RowKind::Site
        | RowKind::Rollout => kind.as_str(),
        RowKind::Host
        | RowKind::Plan
        | RowKind::Credential
        | RowKind::Identity
        | RowKind::Image
        | RowKind::Firmware
        | RowKind::HealthReport
        | RowKind::Deployment
        | RowKind::Task
        | RowKind::Inspection => ROW,
    }
}
