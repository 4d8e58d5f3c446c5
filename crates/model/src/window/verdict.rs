//! Whether the windows and freezes let an operation start.

use super::{StartRule, StartRuleId, StartTerms, WindowState, ZonedInstant};
use crate::filter::{Filter, FilterItem};
use crate::gate::Overrides;
use crate::id::MachineId;
use crate::list_format::join_limited;
use crate::machine::Machine;
use crate::refusal::{Reason, Refusal, RefusingRule};
use crate::time::Timestamp;
use std::collections::BTreeMap;

/// The number of rules and machines that a message names; the rest is counted.
const MAX_NAMED: usize = 8;

/// The rules that select machines of an operation, and which of them hold it back now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartCheck {
    rules: Vec<SelectingRule>,
    blocked: Vec<BlockedMachine>,
}

/// A rule that selects a machine of the operation, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SelectingRule {
    rule: StartRule,
    /// For a window.
    state: Option<WindowState>,
}

/// A machine that is not open, with the rules that hold it back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BlockedMachine {
    machine: MachineId,
    /// All windows that select it; one of them has to open. Empty: none selects it, or one is open.
    windows: Vec<usize>,
    freezes: Vec<usize>,
}

impl SelectingRule {
    fn of(rule: &StartRule, now: Timestamp) -> Self {
        let state = match &rule.terms {
            StartTerms::Open(windows) => Some(windows.state(now)),
            StartTerms::Frozen { .. } => None,
        };
        Self { rule: rule.clone(), state }
    }

    /// When it lets operations start. None: it does now, or it is not known.
    fn opens(&self) -> Option<Timestamp> {
        match (&self.rule.terms, &self.state) {
            (StartTerms::Frozen { until, .. }, _) => Some(*until),
            (StartTerms::Open(_), Some(WindowState::Closed(opens))) => {
                opens.as_ref().map(|opens| opens.at)
            }
            (StartTerms::Open(_), Some(WindowState::Open(_)) | None) => None,
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, Some(WindowState::Open(_)))
    }

    /// Such as `window night (daily 02:00-05:00 UTC) is closed until Fri 2026-11-20 02:00 UTC`.
    fn describe(&self) -> String {
        let name = &self.rule.id.name;
        match (&self.rule.terms, &self.state) {
            (StartTerms::Frozen { until, reason }, _) => {
                format!("freeze {name} holds until {}: {reason}", ZonedInstant::utc(*until))
            }
            (StartTerms::Open(windows), Some(state)) => {
                format!("window {name} ({windows}) is {state}")
            }
            (StartTerms::Open(windows), None) => format!("window {name} ({windows})"),
        }
    }
}

impl StartCheck {
    /// Matches the machines of an operation against the rules that hold for it.
    pub fn new(
        machines: &[Machine],
        rules: &[StartRule],
        by_rollout: bool,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let in_force =
            rules.iter().filter(|rule| rule.holds_for.binds(by_rollout) && !rule.has_ended(now));
        let parsed: Vec<(&StartRule, Filter)> = in_force
            .map(|rule| Ok((rule, rule.parse_filter()?)))
            .collect::<Result<_, Refusal>>()?;
        let selects = |filter: &Filter| {
            machines.iter().any(|machine| filter.matches(FilterItem::Machine(machine)))
        };
        let selecting: Vec<(SelectingRule, Filter)> = parsed
            .into_iter()
            .filter(|(_, filter)| selects(filter))
            .map(|(rule, filter)| (SelectingRule::of(rule, now), filter))
            .collect();
        let mut blocked = Vec::new();
        for machine in machines {
            let (mut windows, mut freezes, mut open) = (Vec::new(), Vec::new(), false);
            for (index, (one, filter)) in selecting.iter().enumerate() {
                if !filter.matches(FilterItem::Machine(machine)) {
                    continue;
                }
                match one.rule.terms {
                    StartTerms::Open(_) => windows.push(index),
                    StartTerms::Frozen { .. } => freezes.push(index),
                }
                open |= one.is_open();
            }
            if open {
                windows.clear();
            }
            if !windows.is_empty() || !freezes.is_empty() {
                blocked.push(BlockedMachine { machine: machine.id.clone(), windows, freezes });
            }
        }
        Ok(Self { rules: selecting.into_iter().map(|(rule, _)| rule).collect(), blocked })
    }

    /// The rules that refuse under an override, with the machines that each holds back. Of several
    /// windows of a machine, the one that opens first stands for all: naming it is enough.
    fn refusing(&self, overrides: &Overrides) -> BTreeMap<usize, Vec<&MachineId>> {
        let passed = |index: &usize| {
            self.rules.get(*index).is_some_and(|one| overrides.names_rule(&one.rule.id))
        };
        let opens = |index: &&usize| {
            let opens = self.rules.get(**index).and_then(SelectingRule::opens);
            opens.map_or(i64::MAX, Timestamp::as_micros)
        };
        let mut refusing: BTreeMap<usize, Vec<&MachineId>> = BTreeMap::new();
        for one in &self.blocked {
            let window = match one.windows.iter().any(&passed) {
                true => None,
                false => one.windows.iter().min_by_key(opens),
            };
            let freezes = one.freezes.iter().filter(|index| !passed(index));
            for index in freezes.chain(window) {
                refusing.entry(*index).or_default().push(&one.machine);
            }
        }
        refusing
    }

    /// The refusal by the rules that the override does not name; none if the operation may start.
    pub fn refuse(&self, what: &str, overrides: &Overrides) -> Option<Refusal> {
        let refusing = self.refusing(overrides);
        let found = |(index, machines)| Some((self.rules.get(index)?, machines));
        let refusing: Vec<(&SelectingRule, Vec<&MachineId>)> =
            refusing.into_iter().filter_map(found).collect();
        let (first, _) = refusing.first()?;
        let said: Vec<String> = refusing
            .iter()
            .map(|(one, machines)| {
                let names: Vec<&str> = machines.iter().map(|id| id.as_str()).collect();
                format!("{} (on {})", one.describe(), join_limited(&names, ", ", MAX_NAMED))
            })
            .collect();
        let message = format!("{what} cannot start now: {}", join_limited(&said, "; ", MAX_NAMED));
        let reason = match first.rule.terms {
            StartTerms::Open(_) => Reason::OutsideWindow,
            StartTerms::Frozen { .. } => Reason::Frozen,
        };
        let ids = refusing.iter().map(|(one, _)| &one.rule.id);
        let with = ids.fold(overrides.clone(), Overrides::and_rule);
        let (id, opens_at) = (first.rule.id.clone(), first.opens());
        let next = format!("{}   # or repeat it with {}", id.show(), with.flags());
        Some(Refusal::new(reason, message).at_rule(RefusingRule { id, opens_at }).next(next))
    }

    /// For a dry run: one sentence for each rule that selects a machine, or that the override
    /// names.
    pub fn describe(&self, overrides: &Overrides) -> Vec<String> {
        let selecting = self.rules.iter().map(|one| {
            let passed = match (self.holds_back(&one.rule.id), overrides.names_rule(&one.rule.id)) {
                (true, true) => "; it refuses, and the override passes it",
                (false, true) => "; the override names it, and it does not refuse",
                (true, false) => "; it refuses",
                (false, false) => "",
            };
            format!("{}{passed}", one.describe())
        });
        let unused = overrides.rules().iter().filter(|id| !self.selects(id)).map(|id| {
            let (kind, name) = (id.kind.as_str(), &id.name);
            format!("{kind} {name} is named by the override, and holds for none of the machines")
        });
        selecting.chain(unused).collect()
    }

    /// What the history records about the rules that the override names; empty if it names none.
    pub fn history_notes(&self, overrides: &Overrides, by: &str) -> String {
        let reason = overrides.reason();
        let note = |id: &StartRuleId| match self.holds_back(id) {
            true => format!("gate {id} overridden by {by}: {reason}"),
            false => format!("gate {id} named by {by}, and it did not refuse: {reason}"),
        };
        overrides.rules().iter().map(note).collect::<Vec<_>>().join("; ")
    }

    fn selects(&self, id: &StartRuleId) -> bool {
        self.rules.iter().any(|one| one.rule.id == *id)
    }

    /// True if the rule is among those that hold a machine back without an override.
    fn holds_back(&self, id: &StartRuleId) -> bool {
        let is = |index: &usize| self.rules.get(*index).is_some_and(|one| one.rule.id == *id);
        self.blocked.iter().any(|one| one.windows.iter().chain(&one.freezes).any(is))
    }
}
