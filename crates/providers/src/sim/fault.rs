//! Fault rules: which calls fail, how, and how often.
//!
//! A rule selects calls by machine, effect and verb, and defines the failure. Rules are tried in
//! the order of their creation; the first that matches and is not used up applies. A rule for every
//! effect does not match probes, only `probe` does, so that background probes never use up a rule
//! that is meant for an operation.

use super::job::FailsAt;
use model::effect::{CallVerb, Effect, ProviderCall};
use model::fault::{EffectOutcome, Fault, FaultCode};
use model::filter::{Filter, FilterValues};
use model::node::NodeStage;
use model::refusal::{Reason, Refusal};
use model::text;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub const MAX_RULES: usize = 256;
/// The longest delay of a response.
pub const MAX_DELAY_MS: u32 = 3_600_000;
/// The word that selects probes.
pub const PROBE: &str = "probe";
/// The effect that writes the disk of a machine.
const WRITE: &str = "repave";
/// The effect of starting child runs, which calls no hardware.
const PARTS: &str = "parts";
/// The part of an image that is written, in percent, when a deployment falls silent.
const HALF_WRITTEN: u8 = 50;
/// The same where the whole image was written, and the system on it cannot be used.
const ALL_BUT_FINISHED: u8 = 99;

/// The failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Reports a failure. The effect has not happened, or only a part of it.
    Fail,
    /// Never responds. The effect has not happened.
    Hang,
    /// Executes the effect; the response is lost.
    Drop,
    /// Executes the effect; the response is unreadable.
    Garbage,
    /// Executes the effect and delays the response.
    Slow,
    /// Receives the call twice, like a duplicated packet, and returns the second result.
    Twice,
}

impl Action {
    pub const ALL: [Action; 6] =
        [Self::Fail, Self::Hang, Self::Drop, Self::Garbage, Self::Slow, Self::Twice];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Hang => "hang",
            Self::Drop => "drop",
            Self::Garbage => "garbage",
            Self::Slow => "slow",
            Self::Twice => "twice",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// Generated if empty. A rule with a known id replaces that rule.
    #[serde(default)]
    pub id: String,
    /// A machine's id with `*` as a wildcard. Empty: every machine.
    #[serde(default)]
    pub machine: String,
    /// The word of an effect, or `probe`. Empty: every effect.
    #[serde(default)]
    pub effect: String,
    #[serde(default = "perform")]
    pub verb: CallVerb,
    pub action: Action,
    /// The number of times that the rule applies. Zero: always.
    #[serde(default)]
    pub times: u32,
    /// For `slow`: the delay of the response.
    #[serde(default)]
    pub delay_ms: u32,
    /// The fault's message; if empty, a default for the action.
    #[serde(default)]
    pub message: String,
    /// For `fail`: the code of the fault. None: a code that fits the effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<FaultCode>,
    /// For `fail` of a disk write: how much is written when it fails, in percent. Zero: it fails
    /// before it begins.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub at_percent: u8,
    /// The number of times that the rule has applied.
    #[serde(default, rename = "struck")]
    pub applied_count: u32,
}

const fn perform() -> CallVerb {
    CallVerb::Perform
}

const fn is_zero(percent: &u8) -> bool {
    *percent == 0
}

impl FilterValues for FaultRule {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "fault_id" => vec![self.id.clone()],
            "machine" => vec![self.machine.clone()],
            "effect" => vec![self.effect.clone()],
            "verb" => vec![self.verb.as_str().into()],
            "action" => vec![self.action.as_str().into()],
            _ => Vec::new(),
        }
    }
}

impl FaultRule {
    /// An unlimited rule for every machine and every effect.
    pub fn new(action: Action) -> Self {
        Self {
            id: String::new(),
            machine: String::new(),
            effect: String::new(),
            verb: CallVerb::Perform,
            action,
            times: 0,
            delay_ms: 0,
            message: String::new(),
            code: None,
            at_percent: 0,
            applied_count: 0,
        }
    }

    /// Parses the words of a request; an empty verb is `perform`.
    pub fn parse(verb: &str, action: &str) -> Result<Self, Refusal> {
        if action.is_empty() {
            return Err(Refusal::missing("fault.action"));
        }
        let actions = Action::ALL.map(Action::as_str);
        let known = Action::ALL.into_iter().find(|one| one.as_str() == action);
        let action = known.ok_or_else(|| unknown_value("fault.action", action, &actions))?;
        let verbs = CallVerb::ALL.map(CallVerb::as_str);
        let known = CallVerb::ALL.into_iter().find(|one| one.as_str() == verb);
        let verb = match known {
            Some(verb) => verb,
            None if verb.is_empty() => CallVerb::Perform,
            None => return Err(unknown_value("fault.verb", verb, &verbs)),
        };
        Ok(Self { verb, ..Self::new(action) })
    }

    /// Refuses a rule that could never apply or is invalid.
    pub fn check(&self) -> Result<(), Refusal> {
        text::check_short("fault.fault_id", &self.id)?;
        text::check_short("fault.machine", &self.machine)?;
        text::check_optional_reason("fault.message", &self.message)?;
        self.check_effect()?;
        self.check_code()?;
        self.check_percent()?;
        let probes = self.effect == PROBE;
        if probes && self.verb != CallVerb::Perform {
            let problem = format!("is {:?}, but a probe has no verb", self.verb.as_str());
            return Err(Refusal::invalid("fault.verb", problem, "leave it out"));
        }
        let delay = self.delay_ms;
        match self.action {
            Action::Slow if delay == 0 || delay > MAX_DELAY_MS => Err(Refusal::invalid(
                "fault.delay_ms",
                format!("is {delay}"),
                format!("use 1 to {MAX_DELAY_MS} with the action slow"),
            )),
            Action::Fail | Action::Hang | Action::Drop | Action::Garbage | Action::Twice
                if delay != 0 =>
            {
                let problem = format!("is {delay}, but {} does not wait", self.action.as_str());
                Err(Refusal::invalid("fault.delay_ms", problem, "leave it out, or use slow"))
            }
            Action::Slow
            | Action::Fail
            | Action::Hang
            | Action::Drop
            | Action::Garbage
            | Action::Twice => Ok(()),
        }
    }

    /// Refuses an effect that no call to the hardware has.
    fn check_effect(&self) -> Result<(), Refusal> {
        let name = self.effect.as_str();
        let stage = NodeStage::parse(name);
        let is_record = stage.is_some_and(NodeStage::is_record);
        if name == PARTS || is_record {
            let problem = format!("is {name:?}, which Farrier does itself: no hardware is called");
            return Err(Refusal::invalid("fault.effect", problem, "name another effect"));
        }
        if name.is_empty() || name == PROBE || stage.is_some() || Effect::NAMES.contains(&name) {
            return Ok(());
        }
        let names = Effect::NAMES.into_iter().filter(|name| *name != PARTS);
        let words: Vec<&str> = names.chain([PROBE]).collect();
        Err(unknown_value("fault.effect", name, &words))
    }

    /// A failure with a code says that nothing happened.
    fn check_code(&self) -> Result<(), Refusal> {
        let Some(code) = self.code else { return Ok(()) };
        let problem = format!("is {:?}", code.as_str());
        if self.action != Action::Fail {
            let instead = "use it with the action fail, or leave it out";
            return Err(Refusal::invalid("fault.code", problem, instead));
        }
        match code.effect_outcome() {
            EffectOutcome::NotApplied => Ok(()),
            EffectOutcome::Unknown => {
                let instead = "fail does nothing and says so: use drop, garbage or hang";
                Err(Refusal::invalid("fault.code", problem, instead))
            }
        }
    }

    /// Only a disk write that is started can fail on its way.
    fn check_percent(&self) -> Result<(), Refusal> {
        let percent = self.at_percent;
        let writes = self.effect == WRITE && self.verb == CallVerb::Perform;
        let problem = format!("is {percent}");
        match percent {
            0 => Ok(()),
            100.. => Err(Refusal::invalid("fault.at_percent", problem, "use 1 to 99")),
            _ if self.action == Action::Fail && writes => Ok(()),
            _ => {
                let instead = "use it with the action fail, the effect repave and the verb perform";
                Err(Refusal::invalid("fault.at_percent", problem, instead))
            }
        }
    }

    /// The failure of a job that has done a part of its work. None: it fails before it begins.
    pub fn fails_at(&self, call: &ProviderCall) -> Option<FailsAt> {
        let code = self.code.unwrap_or(FaultCode::EffectFailed);
        let writes = call.verb == CallVerb::Perform && call.effect.name() == WRITE;
        let percent = match self.at_percent {
            0 if writes => written_before(code),
            percent => percent,
        };
        let fault = Fault::new(code, self.fault_message());
        (percent > 0).then_some(FailsAt { percent, fault })
    }

    pub fn delay(&self) -> Duration {
        Duration::from_millis(u64::from(self.delay_ms))
    }

    /// The fault's message.
    pub fn fault_message(&self) -> String {
        let default = match self.action {
            Action::Fail => "the simulated hardware failed",
            Action::Hang => "the simulated hardware hangs",
            Action::Drop => "the connection was lost before the answer came",
            Action::Garbage => "the answer was not readable: \u{fffd}\u{fffd}{\"res",
            Action::Slow => "the simulated hardware is slow",
            Action::Twice => "the order came twice",
        };
        if self.message.is_empty() { default.into() } else { self.message.clone() }
    }

    /// The fault of a call whose answer is lost or unreadable.
    pub fn lost_answer(&self) -> Fault {
        let code = match self.action {
            Action::Garbage => FaultCode::AnswerGarbled,
            Action::Drop | Action::Fail | Action::Hang | Action::Slow | Action::Twice => {
                FaultCode::AnswerLost
            }
        };
        Fault::new(code, self.fault_message())
    }

    fn matches(&self, machine: &str, selected: &FaultSubject<'_>) -> bool {
        let by_order = match selected {
            FaultSubject::Probe => self.effect == PROBE,
            FaultSubject::Call { effect, step, verb } => {
                let named = self.effect == *effect || self.effect == *step;
                (self.effect.is_empty() || named) && self.verb == *verb
            }
        };
        let left = self.times == 0 || self.applied_count < self.times;
        by_order && left && (self.machine.is_empty() || glob(&self.machine, machine))
    }

    /// True if both are the same apart from their counters.
    fn same_rule(&self, other: &Self) -> bool {
        *self == Self { applied_count: self.applied_count, ..other.clone() }
    }
}

/// How much of an image is on the disk when a write fails with this code, in percent: what the page
/// of the code says. Zero: nothing.
const fn written_before(code: FaultCode) -> u8 {
    use FaultCode::{DeploySilent, InstallFailed, ReadBackDiffers, SystemNotBack};
    if matches!(code, DeploySilent) {
        HALF_WRITTEN
    } else if matches!(code, InstallFailed | ReadBackDiffers | SystemNotBack) {
        ALL_BUT_FINISHED
    } else {
        0
    }
}

fn unknown_value(field: &str, name: &str, legal: &[&str]) -> Refusal {
    let shown: String = name.chars().take(text::MAX_SHORT).collect();
    let instead = format!("use one of {}", legal.join(", "));
    Refusal::invalid(field, format!("{shown:?} is not known"), instead)
}

/// A call or probe that a rule may match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSubject<'a> {
    Probe,
    /// The step too: the stage `drain_node` has the effect `drain` where a cluster does it.
    Call {
        effect: &'static str,
        step: &'a str,
        verb: CallVerb,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rules {
    made: u64,
    pub rules: Vec<FaultRule>,
}

impl Rules {
    /// Adds a checked rule. An equal rule with the same id keeps its counter, so that a rule in the
    /// configuration file is not reset at each start.
    pub fn add(&mut self, mut rule: FaultRule) -> Result<FaultRule, Refusal> {
        rule.applied_count = 0;
        if let Some(known) = self.rules.iter_mut().find(|known| known.id == rule.id) {
            if !known.same_rule(&rule) {
                *known = rule;
            }
            return Ok(known.clone());
        }
        if self.rules.len() >= MAX_RULES {
            let message = format!("there are {MAX_RULES} fault rules already; clear some first");
            return Err(Refusal::new(Reason::TooManyFaults, message));
        }
        while rule.id.is_empty() || self.rules.iter().any(|known| known.id == rule.id) {
            self.made += 1;
            rule.id = format!("fault-{}", self.made);
        }
        self.rules.push(rule.clone());
        Ok(rule)
    }

    /// The first `limit` rules after an id that match. Ids are ordered by length, then by text, so
    /// generated ids are in the order of their creation.
    pub fn page(&self, filter: &Filter, after: &str, limit: usize) -> Vec<FaultRule> {
        let order = |id: &str| (id.len(), id.to_string());
        let matches =
            |rule: &&FaultRule| order(&rule.id) > order(after) && filter.matches_values(*rule);
        let mut found: Vec<FaultRule> = self.rules.iter().filter(matches).cloned().collect();
        found.sort_by_key(|rule| order(&rule.id));
        found.truncate(limit);
        found
    }

    /// Removes one rule, or all of them, and returns how many.
    pub fn clear(&mut self, id: Option<&str>) -> usize {
        let before = self.rules.len();
        self.rules.retain(|rule| id.is_some_and(|id| rule.id != id));
        before - self.rules.len()
    }

    pub fn any_matches(&self, machine: &str, selected: &FaultSubject<'_>) -> bool {
        self.rules.iter().any(|rule| rule.matches(machine, selected))
    }

    /// The rule that applies; its counter is increased.
    pub fn apply_match(&mut self, machine: &str, selected: &FaultSubject<'_>) -> Option<FaultRule> {
        let rule = self.rules.iter_mut().find(|rule| rule.matches(machine, selected))?;
        rule.applied_count = rule.applied_count.saturating_add(1);
        Some(rule.clone())
    }
}

/// Matches `*` as any run of characters.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPAVE: FaultSubject<'static> =
        FaultSubject::Call { effect: "repave", step: "repave-os", verb: CallVerb::Perform };

    #[test]
    fn globs() {
        for (pattern, text, fits) in [
            ("m-1", "m-1", true),
            ("m-1", "m-12", false),
            ("*", "", true),
            ("*", "m-1", true),
            ("m-*", "m-1", true),
            ("m-*", "x-1", false),
            ("*-1", "m-1", true),
            ("r*.s*", "rack7.slot_3", true),
            ("a*a", "a", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
            ("**", "m", true),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn a_bad_rule_is_refused_with_its_field() {
        let fail = FaultRule::new(Action::Fail);
        let slow = FaultRule::new(Action::Slow);
        for (rule, field, name) in [
            (FaultRule { effect: "boil".into(), ..fail.clone() }, "fault.effect", "repave"),
            (FaultRule { machine: "a\nb".into(), ..fail.clone() }, "fault.machine", "printable"),
            (FaultRule { message: "\u{7}".into(), ..fail.clone() }, "fault.message", "printable"),
            (FaultRule { delay_ms: 5, ..fail.clone() }, "fault.delay_ms", "slow"),
            (FaultRule { effect: "disable_node".into(), ..fail.clone() }, "fault.effect", "itself"),
            (FaultRule { effect: "parts".into(), ..fail.clone() }, "fault.effect", "itself"),
            (
                FaultRule { code: Some(FaultCode::AnswerLost), ..fail.clone() },
                "fault.code",
                "use drop",
            ),
            (
                FaultRule { code: Some(FaultCode::SeedFailed), ..FaultRule::new(Action::Hang) },
                "fault.code",
                "action fail",
            ),
            (slow.clone(), "fault.delay_ms", "3600000"),
            (
                FaultRule { effect: "repave".into(), at_percent: 100, ..fail.clone() },
                "fault.at_percent",
                "use 1 to 99",
            ),
            (FaultRule { at_percent: 44, ..fail.clone() }, "fault.at_percent", "repave"),
            (
                FaultRule {
                    effect: "repave".into(),
                    verb: CallVerb::Follow,
                    at_percent: 44,
                    ..fail.clone()
                },
                "fault.at_percent",
                "verb perform",
            ),
            (
                FaultRule { effect: "repave".into(), at_percent: 44, delay_ms: 5, ..slow },
                "fault.at_percent",
                "action fail",
            ),
            (
                FaultRule { effect: PROBE.into(), verb: CallVerb::Stop, ..fail },
                "fault.verb",
                "leave it out",
            ),
        ] {
            let refusal = rule.check().unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(field));
            assert!(refusal.message.contains(name), "{refusal}");
        }
        for (verb, action, field) in [
            ("", "", "fault.action"),
            ("", "explode", "fault.action"),
            ("begin", "fail", "fault.verb"),
        ] {
            let refusal = FaultRule::parse(verb, action).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some(field));
        }
        assert_eq!(FaultRule::parse("stop", "hang").unwrap().verb, CallVerb::Stop);
        assert_eq!(FaultRule::parse("", "drop").unwrap().verb, CallVerb::Perform);
    }

    #[test]
    fn a_rule_applies_as_often_as_requested() {
        let mut rules = Rules::default();
        let twice = FaultRule { times: 2, ..FaultRule::new(Action::Fail) };
        let first = rules.add(twice).unwrap();
        rules.add(FaultRule::new(Action::Drop)).unwrap();
        let actions: Vec<Action> = (0..4)
            .filter_map(|_| rules.apply_match("m-1", &REPAVE))
            .map(|rule| rule.action)
            .collect();
        assert_eq!(actions, [Action::Fail, Action::Fail, Action::Drop, Action::Drop]);
        assert!(rules.apply_match("m-1", &FaultSubject::Probe).is_none());
        assert_eq!(rules.clear(Some(&first.id)), 1);
        assert_eq!(rules.clear(Some("fault-99")), 0);
        assert_eq!(rules.clear(None), 1);
        let third = rules.add(FaultRule::new(Action::Hang)).unwrap();
        assert_eq!(third.id, "fault-3");
    }

    /// If a cluster drains a node, the stage has the effect `drain`.
    #[test]
    fn a_rule_matches_by_effect_or_by_step() {
        let verb = CallVerb::Perform;
        let drain = FaultSubject::Call { effect: "drain", step: "drain_node", verb };
        for (effect, applies) in [("drain", true), ("drain_node", true), ("scrub_gpu", false)] {
            let rule = FaultRule { effect: effect.into(), ..FaultRule::new(Action::Fail) };
            rule.check().unwrap();
            assert_eq!(rule.matches("m-1", &drain), applies, "{effect}");
        }
    }

    #[test]
    fn a_rule_with_an_id_is_added_once() {
        let mut rules = Rules::default();
        let named = FaultRule { id: "config-1".into(), times: 1, ..FaultRule::new(Action::Fail) };
        rules.add(named.clone()).unwrap();
        assert!(rules.apply_match("m-1", &REPAVE).is_some());
        assert_eq!(rules.add(named.clone()).unwrap().applied_count, 1);
        let changed = FaultRule { times: 5, ..named };
        assert_eq!(rules.add(changed).unwrap().applied_count, 0);
        assert_eq!(rules.rules.len(), 1);
    }

    #[test]
    fn rules_read_from_configuration() {
        let rule: FaultRule = serde_json::from_str(r#"{"machine":"m-*","action":"slow"}"#).unwrap();
        assert_eq!((rule.verb, rule.action), (CallVerb::Perform, Action::Slow));
        assert!(serde_json::from_str::<FaultRule>(r#"{"action":"slow","colour":1}"#).is_err());
        assert!(serde_json::from_str::<FaultRule>(r#"{"machine":"m-1"}"#).is_err());
    }
}
