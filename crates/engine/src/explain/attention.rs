//! Everything that needs a person, of every kind, worst first.
//!
//! All candidates are ranked from their records; only the first ones of that order are explained,
//! because an explanation asks the gates. Of each, only the command that is shown is asked about,
//! and a command that several of them offer is asked about once.

use super::offered::{Offer, Trials};
use super::worked_on::{WorkOnNodes, work_on_nodes};
use super::{Explained, readable};
use crate::Engine;
use crate::notify::NotifierStatus;
use crate::secret::{CredentialInfo, SecretStore};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use model::device::Device;
use model::filter::Filter;
use model::health::AlertClass;
use model::host::{Host, HostState};
use model::id::{MachineId, RackId};
use model::lifecycle::Lifecycle;
use model::node::{Node, NodeState, NodeWork};
use model::notify::MAX_NOTIFIERS;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::refusal::Reason;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use model::why::{
    CREDENTIAL, CauseGroup, CauseLinks, Explanation, ListedObject, Location, Rank, ShelvesByRack,
    Suspect, Urgency, explain_break_glass, explain_expiry, explain_notifier, explain_unreadable,
    group_by_cause, rank_alerts, rank_break_glass, rank_device, rank_expiry, rank_host,
    rank_machine, rank_node, rank_notifier, rank_rack, rank_run, rank_site,
};
use std::collections::{BTreeMap, BTreeSet};
use store::{
    MachineSymptom, RecordPage, RecordSymptom, Result, RowKind, StoreError, Tx, UnreadableRow,
};

/// The most objects that one search reads. The searches for the worst come first, and each has its
/// own limit.
const MAX_FOUND: usize = 2_000;
/// The most objects that are explained concurrently. More would keep other readers of the database
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
/// The kind of credential that expires.
const KUBECONFIG: &str = "kubeconfig";
/// The kind of a break-glass in the list.
const APPROVAL: &str = "approval";
/// The kind of a notifier in the list.
const NOTIFIER: &str = "notifier";
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
    /// The objects that need a person because of this one.
    pub explains: Vec<ListedObject>,
}

/// An explained object, with its rank after the explanation.
type RankedItem = (Rank, AttentionItem);

/// What needs a person: one item for each cause.
#[derive(Debug, Clone, Default)]
pub struct Attention {
    /// Worst first.
    pub items: Vec<AttentionItem>,
    /// The urgencies of the causes that come after them and were not explained.
    pub rest: Vec<Urgency>,
    /// More objects may need a person than were found.
    pub more: bool,
}

impl Attention {
    /// The urgency of every cause.
    pub fn urgencies(&self) -> impl Iterator<Item = Urgency> {
        self.items.iter().map(|item| item.urgency).chain(self.rest.iter().copied())
    }
}

/// The ranks of the objects that need a person.
#[derive(Default)]
struct Candidates {
    found: BTreeMap<ListedObject, (Rank, CauseLinks)>,
    /// The explanations of those that are no objects of the engine.
    explained: BTreeMap<ListedObject, Explanation>,
    more: bool,
}

impl Candidates {
    /// An object that no other object explains.
    fn add(&mut self, kind: &'static str, id: impl Into<String>, rank: Option<Rank>) {
        self.add_linked(ListedObject::new(kind, id), rank, CauseLinks::default());
    }

    /// The worst rank of an object counts. One with several problems needs a person for itself.
    fn add_linked(&mut self, object: ListedObject, rank: Option<Rank>, links: CauseLinks) {
        let Some(rank) = rank else { return };
        let known = self.found.entry(object).or_insert_with(|| (rank, links.clone()));
        known.0 = rank.min(known.0);
        if known.1 != links {
            known.1 = CauseLinks::default();
        }
    }

    fn add_records<R: Lifecycle>(
        &mut self,
        page: &RecordPage<R>,
        rank: impl Fn(&R) -> Option<Rank>,
        links: impl Fn(&R) -> CauseLinks,
    ) {
        self.more |= page.next.is_some();
        for record in &page.records {
            let object = ListedObject::new(R::KIND.as_str(), record.head().id.as_str());
            self.add_linked(object, rank(record), links(record));
        }
    }

    fn suspects(self) -> Vec<Suspect> {
        let suspect = |(object, (rank, links))| Suspect { object, rank, links };
        self.found.into_iter().map(suspect).collect()
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
        self.find_overdue(&mut candidates).await?;
        if let Some(secrets) = secrets {
            self.find_expiring(secrets, &mut candidates).await?;
        }
        self.find_break_glass(&mut candidates).await?;
        self.find_failing_notifiers(&mut candidates).await?;
        self.find_unreadable(&mut candidates).await?;
        if self.caller().sees_a_part() {
            self.retain_visible(&mut candidates).await?;
        }
        let (mut known, more) = (std::mem::take(&mut candidates.explained), candidates.more);
        let suspects = candidates.suspects();
        let shelves = self.load_feeding_shelves(&suspects).await?;
        let mut groups = group_by_cause(&suspects, &shelves);
        let rest = groups.split_off(limit.min(groups.len()));
        let trials = Trials::default();
        let mut explanations: Vec<BoxFuture<'_, Result<Option<RankedItem>>>> = Vec::new();
        for group in groups {
            let known = known.remove(&group.object).or_else(|| group.explain());
            explanations.push(Box::pin(self.explain_group(group, known, Offer::shown(&trials))));
        }
        let explained = stream::iter(explanations).buffered(EXPLAINED_AT_ONCE);
        let explained: Vec<Option<RankedItem>> = explained.try_collect().await?;
        let mut items: Vec<RankedItem> = explained.into_iter().flatten().collect();
        items.sort_by_key(|(rank, _)| *rank);
        let items = items.into_iter().map(|(_, item)| item).collect();
        Ok(Attention { items, rest: rest.iter().map(|one| one.rank.urgency).collect(), more })
    }

    /// The power shelves of the racks of all silent objects. A rack with a shelf that cannot be
    /// read is left out: that one may be on.
    async fn load_feeding_shelves(&self, suspects: &[Suspect]) -> Result<ShelvesByRack> {
        let silent = suspects.iter().filter_map(|one| one.links.silent.as_ref()?.0.clone());
        let racks: BTreeSet<RackId> = silent.collect();
        let read = self.store().scan(racks, |racks, tx| {
            Box::pin(async move {
                let mut found = ShelvesByRack::new();
                for rack in racks {
                    let shelves = tx.records_in_rack(rack).await?.into_iter();
                    let shelves: Result<Vec<PowerShelf>> = shelves.map(|(_, one)| one).collect();
                    found.extend(shelves.ok().map(|shelves| (rack.clone(), shelves)));
                }
                Ok(found)
            })
        });
        read.await
    }

    /// Explains a row of the list, unless that is done already. None: its object was deleted since
    /// the list was read.
    async fn explain_group(
        &self,
        group: CauseGroup,
        known: Option<Explanation>,
        offer: Offer<'_>,
    ) -> Result<Option<RankedItem>> {
        let CauseGroup { object: ListedObject { kind, id }, rank, cause: _, explains } = group;
        let explained = match known {
            Some(explanation) => Explained { explanation, ..Explained::default() },
            None => match self.explain_offering(&id, offer).await {
                Err(StoreError::Refused(gone)) if gone.reason == Reason::NotFound => {
                    return Ok(None);
                }
                explained => explained?,
            },
        };
        let urgency = rank.urgency.explained(&explained.explanation);
        let item = AttentionItem { id, kind, urgency, explained, explains };
        Ok(Some((Rank { urgency, ..rank }, item)))
    }

    /// Leaves out what the caller may not see: other objects than machines, nodes and operations,
    /// and those of them whose labels are not in its scope.
    async fn retain_visible(&self, candidates: &mut Candidates) -> Result<()> {
        let kinds = [TargetKind::Machine.as_str(), Node::KIND.as_str(), OPERATION];
        candidates.found.retain(|object, _| kinds.contains(&object.kind));
        let ids = candidates.found.keys().map(|object| object.id.clone()).collect();
        let visible = self.visible_objects(ids).await?;
        candidates.found.retain(|object, _| visible.contains(&object.id));
        // A cause may be an object that the caller does not see.
        for (_, links) in candidates.found.values_mut() {
            *links = CauseLinks::default();
        }
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
            MachineSymptom::FailedChange,
        ] {
            let found = self.store().scan(symptom, |symptom, tx| {
                Box::pin(tx.machines_with_symptom(*symptom, MAX_FOUND))
            });
            let page = found.await?;
            self.store().unreadable().record(&page.unreadable);
            candidates.more |= page.next.is_some();
            for one in &page.machines {
                let object = ListedObject::new(machine, one.id.as_str());
                candidates.add_linked(object, rank_machine(one), CauseLinks::of_machine(one));
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
            candidates.add_records(&racks, |rack| rank_rack(rack, now), CauseLinks::of_rack);
        }
        let sites = self.sites().list(Filter::default(), None, MAX_FOUND).await?;
        candidates.add_records(&sites, rank_site, CauseLinks::of_site);
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
            candidates.add_records(&devices, |one| rank_device(one, now), CauseLinks::of_device);
        }
        Ok(())
    }

    async fn find_nodes(&self, candidates: &mut Candidates) -> Result<()> {
        let now = self.now();
        for states in [QUARANTINED, ONBOARDING, OFFLINE, Node::WAITING] {
            let nodes = self.find_records::<Node>(RecordSymptom::InState(states)).await?;
            let silence = self.settings().nodes.heartbeat_limits.silence;
            let input = (nodes.records.clone(), (silence, now));
            let read = self
                .store()
                .scan(input, |(nodes, times), tx| Box::pin(work_on_nodes(tx, nodes, *times)));
            let WorkOnNodes { work, machines } = read.await?;
            let rank = |node: &Node| rank_node(node, *work.get(&node.head.id)?, now);
            let links = |node: &Node| {
                let work = work.get(&node.head.id).copied().unwrap_or(NodeWork::Idle);
                CauseLinks::of_node(node, machines.get(&node.machine), work)
            };
            candidates.add_records(&nodes, rank, links);
        }
        Ok(())
    }

    async fn find_overdue(&self, candidates: &mut Candidates) -> Result<()> {
        let mut overdue = self.runs().overdue().await?;
        // A child run is overdue together with its parent.
        overdue.retain(|run| run.spec.parent_run.is_none());
        let targets = overdue.iter().map(|run| run.spec.target.clone()).collect();
        let read = self.store().scan(targets, |targets: &Vec<TargetId>, tx| {
            Box::pin(async move {
                let mut found = Vec::with_capacity(targets.len());
                for target in targets {
                    found.push(readable(load_location(tx, target).await)?);
                }
                Ok(found)
            })
        });
        for (run, location) in overdue.iter().zip(read.await?) {
            let object = ListedObject::new(OPERATION, run.spec.id.as_str());
            let links = CauseLinks::of_run(&run.spec.target, location);
            candidates.add_linked(object, Some(rank_run(run)), links);
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
            candidates.explained.insert(ListedObject::new(CREDENTIAL, name), explanation);
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
            let object = ListedObject::new(APPROVAL, id);
            candidates.explained.insert(object, explain_break_glass(&approval));
        }
        Ok(())
    }

    /// The notifiers whose receivers do not accept their notices.
    async fn find_failing_notifiers(&self, candidates: &mut Candidates) -> Result<()> {
        let now = self.now();
        for NotifierStatus { notifier, dead_letters } in
            self.notifiers().list("", MAX_NOTIFIERS).await?
        {
            let Some(rank) = rank_notifier(&notifier, dead_letters, now) else { continue };
            candidates.add(NOTIFIER, notifier.name.clone(), Some(rank));
            let object = ListedObject::new(NOTIFIER, notifier.name.clone());
            candidates.explained.insert(object, explain_notifier(&notifier, dead_letters, now));
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
            let object = ListedObject::new(object_kind(kind), id);
            // It is not known since when.
            let rank = Rank::new(Urgency::Stopped, Timestamp::default());
            let kind = Some(kind.as_str());
            let explanation = explain_unreadable(&row.id, &row.to_string(), kind);
            candidates.add(object.kind, object.id.clone(), Some(rank));
            candidates.explained.insert(object, explanation);
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

/// Where a machine or a switch stands, and what feeds it. None: nothing feeds the target.
async fn load_location(tx: &mut Tx, target: &TargetId) -> Result<Option<Location>> {
    Ok(match target.kind {
        TargetKind::Machine => {
            let machine = tx.machine(&MachineId::trusted(target.as_str())).await?;
            machine.map(|machine| (machine.spec.rack, machine.spec.feeds))
        }
        TargetKind::Switch => {
            let switch = tx.record::<Switch>(target.as_str()).await?;
            switch.map(|switch| (switch.head.rack, switch.spec.feeds))
        }
        TargetKind::PowerShelf | TargetKind::Rack => None,
    })
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
        | RowKind::Site => kind.as_str(),
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
