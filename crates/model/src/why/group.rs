//! Groups the objects that need a person under the cause that explains them: power shelves that are
//! off, a site that is cut off, a credential that BMCs refuse, a failed device of a rack, the
//! machine of a node.

use super::{Explanation, Rank, Urgency, dead_feeds};
use crate::condition::{ConditionType, POWERED_OFF};
use crate::device::Device;
use crate::fault::{FaultCode, Repair};
use crate::id::{PowerShelfId, RackId, RunId, SiteId};
use crate::lifecycle::Lifecycle;
use crate::list_format::join_limited;
use crate::machine::view::EffectiveState;
use crate::machine::{ChangeKind, Machine, MachineProblem};
use crate::node::{Node, NodeState, NodeWork};
use crate::power_shelf::PowerShelf;
use crate::rack::{Rack, RackFailurePhase};
use crate::site::{Site, SiteState};
use crate::target::{TargetId, TargetKind};
use std::collections::{BTreeMap, BTreeSet};

/// The kind of a credential in the list.
pub const CREDENTIAL: &str = "credential";
/// The number of objects that a headline names; the rest is counted.
const MAX_NAMED: usize = 6;

/// The longest chain of causes: a node, its machine, its rack, and the device that failed.
const MAX_DEPTH: usize = 4;

/// The power shelves of each rack.
pub type ShelvesByRack = BTreeMap<RackId, Vec<PowerShelf>>;

/// An object in the list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ListedObject {
    pub kind: &'static str,
    pub id: String,
}

impl ListedObject {
    pub fn new(kind: &'static str, id: impl Into<String>) -> Self {
        Self { kind, id: id.into() }
    }
}

/// The rack of a device, and the power shelves that feed it.
pub type Location = (Option<RackId>, Vec<PowerShelfId>);

/// What the record of an object says about the causes of its problem. The default explains nothing:
/// the object needs a person for itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CauseLinks {
    /// It does not answer: its rack, and the power shelves that feed it.
    pub silent: Option<Location>,
    /// Its BMC refuses the login of this credential.
    pub refused_login: Option<String>,
    /// The object that explains it, if that needs a person too.
    pub depends_on: Option<ListedObject>,
    /// The site of a node.
    pub site: Option<SiteId>,
    /// It is a site whose nodes are silent.
    pub is_cut_off: bool,
    /// It is a machine of this rack, and switched off.
    pub switched_off_in: Option<RackId>,
    /// It is a rack whose power sequence has stopped.
    pub stopped_switching: bool,
}

/// An object that needs a person, before it is explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    pub object: ListedObject,
    pub rank: Rank,
    pub links: CauseLinks,
}

/// A cause that is no listed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedCause {
    /// No power shelf that feeds the objects is on.
    DeadShelves(Vec<PowerShelfId>),
    /// The BMCs of several machines refuse the login of one credential.
    RefusedLogin(String),
}

/// One row of the list: an object or a cause, and the objects that it explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CauseGroup {
    pub object: ListedObject,
    /// That of the worst object of the group.
    pub rank: Rank,
    /// None: the object is listed itself, and has an explanation of its own.
    pub cause: Option<SharedCause>,
    pub explains: Vec<ListedObject>,
}

/// Groups the objects by their root cause, the worst first. Every object is in one group.
pub fn group_by_cause(suspects: &[Suspect], shelves: &ShelvesByRack) -> Vec<CauseGroup> {
    let causes = Causes::new(suspects, shelves);
    let mut groups: BTreeMap<ListedObject, CauseGroup> = BTreeMap::new();
    for suspect in suspects {
        let root = causes.root(suspect, 0).unwrap_or_else(|| Root::Listed(suspect.object.clone()));
        let (object, cause) = causes.head(root);
        let group = groups.entry(object.clone()).or_insert_with(|| CauseGroup {
            object: object.clone(),
            rank: suspect.rank,
            cause,
            explains: Vec::new(),
        });
        group.rank = group.rank.min(suspect.rank);
        if suspect.object != object {
            group.explains.push(suspect.object.clone());
        }
    }
    let mut groups: Vec<CauseGroup> = groups.into_values().collect();
    groups.sort_by(|one, other| (one.rank, &one.object).cmp(&(other.rank, &other.object)));
    groups
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Root {
    Listed(ListedObject),
    /// Power shelves of this rack are off.
    Rack(RackId),
    /// The login of this credential is refused.
    Login(String),
}

struct Causes<'a> {
    listed: BTreeMap<&'a ListedObject, &'a Suspect>,
    /// The power shelves of each rack that are off, and whose devices are silent because of that.
    dead: BTreeMap<&'a RackId, BTreeSet<PowerShelfId>>,
    shelves: &'a ShelvesByRack,
    /// How many machines have a BMC that refuses each credential.
    refused: BTreeMap<&'a str, usize>,
    /// The site of the node on each machine.
    sites: BTreeMap<&'a ListedObject, &'a SiteId>,
}

impl<'a> Causes<'a> {
    fn new(suspects: &'a [Suspect], shelves: &'a ShelvesByRack) -> Self {
        let listed = suspects.iter().map(|one| (&one.object, one)).collect();
        let (refused, sites, dead) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut causes = Self { listed, dead, shelves, refused, sites };
        for links in suspects.iter().map(|one| &one.links) {
            if let Some(credential) = &links.refused_login {
                *causes.refused.entry(credential).or_default() += 1;
            }
            causes.sites.extend(links.depends_on.as_ref().zip(links.site.as_ref()));
            if let Some((Some(rack), _)) = &links.silent {
                let feeds = causes.dead_feeds(links);
                causes.dead.entry(rack).or_default().extend(feeds);
            }
        }
        causes
    }

    fn dead_feeds(&self, links: &CauseLinks) -> Vec<PowerShelfId> {
        let Some((Some(rack), feeds)) = &links.silent else { return Vec::new() };
        self.shelves.get(rack).map(|shelves| dead_feeds(feeds, shelves)).unwrap_or_default()
    }

    /// The root cause of an object; none if it is a cause itself.
    fn root(&self, suspect: &Suspect, depth: usize) -> Option<Root> {
        if suspect.links.is_cut_off {
            return self.root_of_site(&suspect.object);
        }
        let parent = self.parent(suspect).filter(|_| depth < MAX_DEPTH);
        self.shared(suspect)
            .or_else(|| self.shared(parent?))
            .or_else(|| self.cut_off(suspect).map(Root::Listed))
            .or_else(|| {
                let parent = parent?;
                let behind = self.root(parent, depth + 1);
                behind.or_else(|| Some(Root::Listed(parent.object.clone())))
            })
    }

    /// The listed object that explains this one: what it depends on, or the rack whose stopped
    /// power sequence has switched it off.
    fn parent(&self, suspect: &Suspect) -> Option<&'a Suspect> {
        let CauseLinks { depends_on, switched_off_in, .. } = &suspect.links;
        if let Some(rack) = switched_off_in {
            let rack = ListedObject::new(Rack::KIND.as_str(), rack.as_str());
            let rack = self.listed.get(&rack).filter(|rack| rack.links.stopped_switching)?;
            let own = rack.links.depends_on.as_ref() == Some(&suspect.object);
            return (!own).then_some(*rack);
        }
        let parent = self.listed.get(depends_on.as_ref()?)?;
        // What works, and only lacks something, explains nothing.
        (parent.rank.urgency != Urgency::Degraded).then_some(*parent)
    }

    /// The cause that the object has in common with its neighbours.
    fn shared(&self, suspect: &Suspect) -> Option<Root> {
        let CauseLinks { silent, refused_login, .. } = &suspect.links;
        if let Some((Some(rack), _)) = silent
            && !self.dead_feeds(&suspect.links).is_empty()
        {
            return Some(Root::Rack(rack.clone()));
        }
        let credential = refused_login.as_ref()?;
        let several = self.refused.get(credential.as_str()).is_some_and(|count| *count > 1);
        several.then(|| Root::Login(credential.clone()))
    }

    /// The listed site that is cut off, of a silent node or of the machine under it.
    fn cut_off(&self, suspect: &Suspect) -> Option<ListedObject> {
        // A machine that is switched off says so itself: it is not out of reach.
        suspect.links.silent.as_ref().filter(|_| suspect.links.switched_off_in.is_none())?;
        let of_machine = || self.sites.get(&suspect.object).copied();
        let site = suspect.links.site.as_ref().or_else(of_machine)?;
        let site = ListedObject::new(Site::KIND.as_str(), site.as_str());
        let is_cut_off = self.listed.get(&site).is_some_and(|site| site.links.is_cut_off);
        is_cut_off.then_some(site)
    }

    /// A site counts as cut off too when all its silent nodes have lost their power together.
    fn root_of_site(&self, site: &ListedObject) -> Option<Root> {
        let on_site =
            |one: &&&Suspect| one.links.site.as_ref().is_some_and(|own| own.as_str() == site.id);
        let mut causes = self.listed.values().filter(on_site).map(|node| {
            let machine = node.links.depends_on.as_ref().and_then(|one| self.listed.get(one));
            self.shared(node).or_else(|| self.shared(machine?))
        });
        let first = causes.next()??;
        causes.all(|cause| cause.as_ref() == Some(&first)).then_some(first)
    }

    /// The object that stands for a cause in the list, and the cause if it is not listed itself.
    fn head(&self, root: Root) -> (ListedObject, Option<SharedCause>) {
        let (heads, cause) = match root {
            Root::Listed(object) => return (object, None),
            Root::Rack(rack) => {
                let dead: Vec<PowerShelfId> =
                    self.dead.get(&rack).into_iter().flatten().cloned().collect();
                let kind = PowerShelf::KIND.as_str();
                let heads = dead.iter().map(|id| ListedObject::new(kind, id.as_str())).collect();
                (heads, SharedCause::DeadShelves(dead))
            }
            Root::Login(name) => {
                (vec![ListedObject::new(CREDENTIAL, &*name)], SharedCause::RefusedLogin(name))
            }
        };
        let heads: Vec<ListedObject> = heads;
        // A shelf that is listed itself has a better explanation.
        match heads.iter().find(|head| self.listed.contains_key(head)) {
            Some(listed) => (listed.clone(), None),
            None => (heads.into_iter().next().unwrap_or_default(), Some(cause)),
        }
    }
}

impl CauseGroup {
    /// The explanation of a cause that is no listed object.
    pub fn explain(&self) -> Option<Explanation> {
        let count = self.explains.len();
        let (headline, next_commands, fault) = match self.cause.as_ref()? {
            SharedCause::DeadShelves(shelves) => {
                let names: Vec<&str> = shelves.iter().map(PowerShelfId::as_str).collect();
                let verb = if names.len() == 1 { "is" } else { "are" };
                let headline = format!(
                    "{} {verb} off, and no other power shelf feeds what depends on them",
                    join_limited(&names, ", ", MAX_NAMED)
                );
                (headline, vec![power_on(&names)], None)
            }
            SharedCause::RefusedLogin(name) => {
                let headline = format!("the BMCs of {count} machines refuse the login of {name}");
                let set = format!("{} {name}", Repair::SetCredential.words());
                (headline, vec![set], Some(FaultCode::LoginRefused))
            }
        };
        let since = Some(self.rank.since);
        Some(Explanation { headline, since, fault, next_commands, ..Explanation::default() })
    }
}

/// The command that switches power shelves on.
pub(super) fn power_on(shelves: &[&str]) -> String {
    let ids: Vec<String> = shelves.iter().map(|id| format!("--id {id}")).collect();
    format!("farrier power-shelf maintenance power-on {}", ids.join(" "))
}

impl CauseLinks {
    /// `stopped`: the node or rack whose operation has stopped at it, and that operation or its
    /// part. Where the machine lacks nothing else, that node or rack is what is repaired.
    pub fn of_machine(machine: &Machine, stopped: Option<(&ListedObject, &RunId)>) -> Self {
        let stopped = stopped.filter(|(_, run)| machine.needs_intervention_after(run));
        if let Some((object, _)) = stopped.filter(|_| lacks_nothing_else(machine)) {
            return Self { depends_on: Some(object.clone()), ..Self::default() };
        }
        let spec = &machine.spec;
        let silent = Some((spec.rack.clone(), spec.feeds.clone()));
        // What explains its silence explains no change that failed, but one of its power.
        if machine.failed_change().is_some_and(|failed| failed.kind != ChangeKind::Power) {
            return Self::default();
        }
        match machine.problem().filter(|_| machine.effective_state() == EffectiveState::Idle) {
            Some(MachineProblem::BmcUnreachable(known)) if is_refused_login(&known.reason) => {
                let credential = Some(spec.bmc_credential.clone());
                Self {
                    refused_login: credential.filter(|name| !name.is_empty()),
                    ..Self::default()
                }
            }
            Some(MachineProblem::Unreachable(known)) if known.reason == POWERED_OFF => {
                Self { silent, switched_off_in: spec.rack.clone(), ..Self::default() }
            }
            Some(MachineProblem::Unreachable(_) | MachineProblem::BmcUnreachable(_)) => {
                Self { silent, ..Self::default() }
            }
            Some(
                MachineProblem::UnfinishedDisk(_)
                | MachineProblem::NoSystem(_)
                | MachineProblem::NetworkBoot(_)
                | MachineProblem::FailedChange(_),
            )
            | None => Self::default(),
        }
    }

    pub fn of_device<D: Device>(device: &D) -> Self {
        let lost = device.observed().is_some_and(|observed| !observed.reachable);
        let fed = matches!(D::TARGET, TargetKind::Switch);
        let silent = || (device.head().rack.clone(), device.spec().feeds.clone());
        Self { silent: (lost && fed).then(silent), ..Self::default() }
    }

    /// `machine` is that of the node; it may not be listed, because it was not probed since. Where
    /// the node's own operation has stopped, that is what is repaired, and not the machine.
    pub fn of_node(node: &Node, machine: Option<&Machine>, work: NodeWork) -> Self {
        if node.state != NodeState::Offline {
            return Self::default();
        }
        let of_machine = || ListedObject::new(TargetKind::Machine.as_str(), node.machine.as_str());
        let location = machine.map(|one| (one.spec.rack.clone(), one.spec.feeds.clone()));
        Self {
            silent: Some(location.unwrap_or_default()),
            depends_on: (work != NodeWork::Stopped).then(of_machine),
            site: node.site.clone(),
            ..Self::default()
        }
    }

    /// An operation on a device at this location.
    pub fn of_run(target: &TargetId, location: Option<Location>) -> Self {
        let depends_on = Some(ListedObject::new(target.kind.as_str(), target.as_str()));
        Self { silent: location, depends_on, ..Self::default() }
    }

    /// A rack in Error for one of its switches or power shelves. Where a machine has failed, the
    /// operation of the rack is what is repaired, so the rack keeps its own row.
    pub fn of_rack(rack: &Rack) -> Self {
        let Some(cause) = rack.failure() else { return Self::default() };
        let device = cause.device.as_ref().filter(|one| one.kind != TargetKind::Machine);
        let depends_on = device.map(|one| ListedObject::new(one.kind.as_str(), one.as_str()));
        let stopped_switching = cause.phase == RackFailurePhase::PowerSequence;
        Self { depends_on, stopped_switching, ..Self::default() }
    }

    pub fn of_site(site: &Site) -> Self {
        Self { is_cut_off: site.state() == SiteState::CutOff, ..Self::default() }
    }
}

/// True if nothing but its last operation is wrong with a machine that needs intervention.
fn lacks_nothing_else(machine: &Machine) -> bool {
    let lost = |one| machine.conditions.get(one).is_some_and(|known| !known.status);
    let left_behind = machine.open_disk_write.is_some()
        || machine.network_boot.is_some()
        || machine.failed_change().is_some();
    !left_behind && !lost(ConditionType::Reachable) && !lost(ConditionType::BmcReachable)
}

/// The reason of a condition that a failed probe has set is the code of its fault.
fn is_refused_login(reason: &str) -> bool {
    FaultCode::parse(reason) == Some(FaultCode::LoginRefused)
}
