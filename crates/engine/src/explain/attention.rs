//! Everything that needs a person, of every kind, worst first.

use super::Explained;
use crate::Engine;
use model::condition::ConditionType;
use model::filter::{Filter, FilterSubject};
use model::machine::view::EffectiveState;
use model::node::NodeState;
use model::power_shelf::PowerShelf;
use model::refusal::Reason;
use model::site::SiteState;
use model::switch::Switch;
use model::why::Urgency;
use store::{Result, StoreError};

const FAILED: &str = "effective_state=ATTENTION";
const UNREACHABLE: &str = "effective_state=IDLE AND condition.Reachable=false";
const ERROR: &str = "Error";

/// An object that needs a person.
#[derive(Debug, Clone)]
pub struct AttentionItem {
    pub id: String,
    pub kind: &'static str,
    pub urgency: Urgency,
    pub explained: Explained,
}

#[derive(Debug, Clone, Default)]
pub struct Attention {
    pub items: Vec<AttentionItem>,
    /// There are more objects than were explained.
    pub more: bool,
}

/// The ids of objects that need a person.
#[derive(Default)]
struct Candidates {
    found: Vec<(&'static str, String, Urgency)>,
    /// The most objects of each kind that are explained.
    max_of_kind: usize,
    more: bool,
}

impl Candidates {
    fn add(&mut self, kind: &'static str, urgency: Urgency, ids: impl Iterator<Item = String>) {
        self.found.extend(ids.map(|id| (kind, id, urgency)));
    }
}

impl Engine {
    /// What needs a person, worst first; among equals, what waits longest. Each explanation asks
    /// the gates, so at most `max_of_kind` objects of each kind are explained.
    pub async fn attention(&self, max_of_kind: usize) -> Result<Attention> {
        let mut candidates = Candidates { max_of_kind, ..Candidates::default() };
        self.find_machines(&mut candidates).await?;
        self.find_records(&mut candidates).await?;
        let overdue = self.runs().overdue().await?;
        // A child run is overdue together with its parent.
        let overdue = overdue.into_iter().filter(|run| run.spec.parent_run.is_none());
        let overdue = overdue.map(|run| run.spec.id.to_string());
        candidates.add("operation", Urgency::Overdue, overdue.take(max_of_kind));
        let mut items = Vec::new();
        for (kind, id, urgency) in candidates.found {
            let explained = match self.explain(&id).await {
                // It was deleted since the list was read.
                Err(StoreError::Refused(refusal)) if refusal.reason == Reason::NotFound => continue,
                explained => explained?,
            };
            let urgency = match explained.explanation.may_be_damaged {
                true => Urgency::MayBeDamaged,
                false => urgency,
            };
            items.push(AttentionItem { id, kind, urgency, explained });
        }
        items.sort_by_key(|item| (item.urgency, item.explained.explanation.since));
        Ok(Attention { items, more: candidates.more })
    }

    async fn find_machines(&self, candidates: &mut Candidates) -> Result<()> {
        for (filter, urgency) in [(FAILED, Urgency::Stopped), (UNREACHABLE, Urgency::OutOfService)]
        {
            let filter = Filter::parse(filter, FilterSubject::Machine)?;
            let page = self.machines().list(filter, None, candidates.max_of_kind as i64).await?;
            candidates.more |= page.next.is_some();
            let machines = page.machines.into_iter().filter(|machine| {
                // A machine that was never probed is not a problem.
                let probed = machine.conditions.get(ConditionType::Reachable).is_some();
                probed || machine.effective_state() == EffectiveState::Attention
            });
            candidates.add("machine", urgency, machines.map(|machine| machine.id.to_string()));
        }
        Ok(())
    }

    async fn find_records(&self, candidates: &mut Candidates) -> Result<()> {
        let in_error = || Filter::in_states(&[ERROR]);
        let racks = self.racks().list(in_error(), None, candidates.max_of_kind).await?;
        candidates.more |= racks.next.is_some();
        let ids = racks.records.into_iter().map(|rack| rack.head.id);
        candidates.add("rack", Urgency::Stopped, ids);
        let switches =
            self.devices().list::<Switch>(in_error(), None, candidates.max_of_kind).await?;
        candidates.more |= switches.next.is_some();
        let ids = switches.records.into_iter().map(|switch| switch.head.id);
        candidates.add("switch", Urgency::Stopped, ids);
        let shelves =
            self.devices().list::<PowerShelf>(in_error(), None, candidates.max_of_kind).await?;
        candidates.more |= shelves.next.is_some();
        let ids = shelves.records.into_iter().map(|shelf| shelf.head.id);
        candidates.add("power_shelf", Urgency::Stopped, ids);
        for (state, urgency) in [
            (NodeState::Quarantined, Urgency::Stopped),
            (NodeState::Offline, Urgency::OutOfService),
        ] {
            let filter = Filter::in_states(&[state.as_str()]);
            let nodes = self.nodes().list(filter, None, candidates.max_of_kind).await?;
            candidates.more |= nodes.next.is_some();
            candidates.add("node", urgency, nodes.records.into_iter().map(|node| node.head.id));
        }
        let sites = self.sites().list(Filter::default(), None, candidates.max_of_kind).await?;
        candidates.more |= sites.next.is_some();
        let cut_off = sites.records.into_iter().filter(|site| match site.state() {
            SiteState::Unreachable | SiteState::CutOff => true,
            SiteState::New | SiteState::Connected => false,
        });
        candidates.add("site", Urgency::OutOfService, cut_off.map(|site| site.head.id));
        Ok(())
    }
}
