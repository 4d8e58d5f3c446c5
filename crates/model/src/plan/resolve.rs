//! Resolves a plan into the steps of one run on one machine.

use super::{MAX_TIMEOUT_SECONDS, Plan, RunType, Step, check_document};
use crate::effect::{Effect, PowerOffPolicy};
use crate::machine::Machine;
use crate::refusal::Refusal;
use crate::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The parameters of a run, as its operation shows them.
pub type Params = BTreeMap<String, String>;

pub const IMAGE_REF: &str = "image_ref";
pub const NETWORK: &str = "network";
pub const GRACEFUL_SECONDS: &str = "graceful_seconds";
pub const FORCE: &str = "force";
/// The reason for which a run ignores the health reports of its machine.
pub const HEALTH_OVERRIDE: &str = "health_override";

/// The time that a step needs besides the graceful shutdown: to cut the power, boot and read back.
const ROOM_SECONDS: u32 = 300;
/// The longest time that a drain reserves at the end of its step to report what blocked it.
const LAST_WORDS_SECONDS: u32 = 30;

/// The server's values for fields that a plan leaves open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    pub timeout_seconds: u32,
    pub max_retries: u32,
    /// The image of a reimage that names none.
    pub image_ref: String,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { timeout_seconds: 600, max_retries: 2, image_ref: "ubuntu-2204".into() }
    }
}

/// A resolved step: every field has its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunStep {
    pub name: String,
    pub timeout_seconds: u32,
    pub max_retries: u32,
    pub effect: Effect,
}

impl RunStep {
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.timeout_seconds))
    }
}

/// Refuses unknown and invalid parameters; drops empty ones.
pub fn checked_params(mut params: Params) -> Result<Params, Refusal> {
    for (name, value) in &params {
        let field = format!("params[{}]", name.chars().take(64).collect::<String>());
        match name.as_str() {
            IMAGE_REF => text::check_short(&field, value)?,
            NETWORK => check_document(&field, value)?,
            GRACEFUL_SECONDS | FORCE => {}
            HEALTH_OVERRIDE => drop(text::check_optional_reason(&field, value)?),
            _ => {
                let instead = format!(
                    "the parameters are {IMAGE_REF}, {NETWORK}, {GRACEFUL_SECONDS}, {FORCE} and {HEALTH_OVERRIDE}"
                );
                return Err(Refusal::invalid(&field, "is not a parameter", instead));
            }
        }
    }
    params.retain(|_, value| !value.trim().is_empty());
    power_off_policy_of(&params)?.check(|label| format!("params[{label}]"))?;
    Ok(params)
}

/// The power-off policy that the run's parameters request.
fn power_off_policy_of(params: &Params) -> Result<PowerOffPolicy, Refusal> {
    let bad = |name: &str, value: &str, instead: &str| {
        let shown: String = value.chars().take(64).collect();
        Refusal::invalid(&format!("params[{name}]"), format!("is {shown:?}"), instead)
    };
    let graceful_seconds = match params.get(GRACEFUL_SECONDS) {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            bad(GRACEFUL_SECONDS, text, "use a number of seconds; 0 cuts the power at once")
        })?),
    };
    let force = match params.get(FORCE).map(String::as_str) {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(other) => return Err(bad(FORCE, other, "use true or false")),
    };
    Ok(PowerOffPolicy { graceful_seconds, force })
}

/// Adds the server's defaults for parameters that the client did not set.
pub fn with_defaults(run_type: RunType, mut params: Params, defaults: &Defaults) -> Params {
    if run_type == RunType::Reimage && !params.contains_key(IMAGE_REF) {
        params.insert(IMAGE_REF.into(), defaults.image_ref.clone());
    }
    params
}

impl Plan {
    /// The steps of a run of this plan. If the machine has no cluster, a built-in plan skips the
    /// steps that need one; a user-defined plan is refused.
    pub fn resolve(
        &self,
        machine: &Machine,
        params: &Params,
        defaults: &Defaults,
    ) -> Result<Vec<RunStep>, Refusal> {
        let requested = power_off_policy_of(params)?;
        let mut steps = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let effect = match fill_in(step, machine, params) {
                Ok(effect) if self.built_in && moot(&effect) => continue,
                Ok(effect) => effect,
                Err(Gap::Cluster) if self.built_in => continue,
                Err(gap) => return Err(gap.refusal(step, machine)),
            };
            let timeout_seconds = step.timeout_seconds.unwrap_or(defaults.timeout_seconds);
            let resolved = RunStep {
                name: step.name.clone(),
                timeout_seconds,
                max_retries: step.max_retries.unwrap_or(defaults.max_retries),
                effect: within(effect, timeout_seconds),
            };
            steps.push(resolved.with_power_off(requested, step.timeout_seconds.is_none())?);
        }
        Ok(steps)
    }
}

impl RunStep {
    /// Fills the unset fields of the power-off policy from the run's parameters. The step's timeout
    /// is extended for the graceful shutdown, unless the plan sets both the timeout and
    /// `graceful_seconds`. Refused when the merged values contradict each other.
    fn with_power_off(
        mut self,
        requested: PowerOffPolicy,
        unlimited: bool,
    ) -> Result<Self, Refusal> {
        let Some(own) = self.effect.power_off_policy_mut() else { return Ok(self) };
        let may_grow = unlimited || own.graceful_seconds.is_none();
        *own = own.or(requested);
        own.check(|name| format!("params[{name}]"))?;
        if let (true, Some(seconds)) = (may_grow, own.graceful_seconds) {
            let needed = seconds.saturating_add(ROOM_SECONDS).min(MAX_TIMEOUT_SECONDS);
            self.timeout_seconds = self.timeout_seconds.max(needed);
        }
        Ok(self)
    }
}

/// True if the effect has nothing to act on, because the machine is in no cluster.
fn moot(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Drain { cluster_ref, .. } | Effect::Uncordon { cluster_ref, .. }
            if cluster_ref.is_empty()
    )
}

/// Limits the deadline of a drain so that it ends shortly before its step: the remaining time is
/// for reporting what blocked it.
fn within(effect: Effect, timeout_seconds: u32) -> Effect {
    let Effect::Drain { cluster_ref, deadline_seconds } = effect else { return effect };
    let rest = (timeout_seconds / 10).clamp(1, LAST_WORDS_SECONDS);
    let most = timeout_seconds.saturating_sub(rest).max(1);
    let deadline_seconds = Some(deadline_seconds.unwrap_or(most).min(most));
    Effect::Drain { cluster_ref, deadline_seconds }
}

/// A value that is missing in the plan, the parameters and the machine.
enum Gap {
    Cluster,
    Image,
    Network,
}

impl Gap {
    fn refusal(&self, step: &Step, machine: &Machine) -> Refusal {
        let name = &step.name;
        let (field, message, instead) = match self {
            Self::Cluster => (
                "machine.spec.target_cluster_ref",
                format!("of {} is empty, and step {name} needs a cluster", machine.id),
                "name the cluster in the step, or set it with `farrier machine update`",
            ),
            Self::Image => (
                "params[image_ref]",
                format!("is missing, and step {name} names no image"),
                "pass image_ref (`--image`)",
            ),
            Self::Network => (
                "params[network]",
                format!("is missing, and step {name} has no document"),
                "pass network (`--param network=…`)",
            ),
        };
        Refusal::invalid(field, message, instead)
    }
}

fn fill_in(step: &Step, machine: &Machine, params: &Params) -> Result<Effect, Gap> {
    let own = |value: &String| (!value.is_empty()).then(|| value.clone());
    let cluster = |named: &String| own(named).or_else(|| own(&machine.spec.target_cluster_ref));
    Ok(match &step.effect {
        Effect::Repave { image } => Effect::Repave {
            image: own(image).or_else(|| params.get(IMAGE_REF).cloned()).ok_or(Gap::Image)?,
        },
        Effect::Net { document } => Effect::Net {
            document: own(document).or_else(|| params.get(NETWORK).cloned()).ok_or(Gap::Network)?,
        },
        Effect::Join { cluster_ref, labels, taints } => Effect::Join {
            cluster_ref: cluster(cluster_ref).ok_or(Gap::Cluster)?,
            labels: labels.clone(),
            taints: taints.clone(),
        },
        // For a machine in no cluster these steps succeed and report that there is nothing to do.
        Effect::Drain { cluster_ref, deadline_seconds } => Effect::Drain {
            cluster_ref: cluster(cluster_ref).unwrap_or_default(),
            deadline_seconds: *deadline_seconds,
        },
        Effect::Uncordon { cluster_ref, own } => {
            Effect::Uncordon { cluster_ref: cluster(cluster_ref).unwrap_or_default(), own: *own }
        }
        Effect::Leave { cluster_ref } => {
            Effect::Leave { cluster_ref: cluster(cluster_ref).ok_or(Gap::Cluster)? }
        }
        Effect::Verify { cluster_ref, expect, advisory } => {
            let found = cluster(cluster_ref);
            // An advisory check without a cluster is valid: it reports that there is nothing to
            // drain.
            let found = if *advisory { Some(found.unwrap_or_default()) } else { found };
            let cluster_ref = found.ok_or(Gap::Cluster)?;
            Effect::Verify { cluster_ref, expect: *expect, advisory: *advisory }
        }
        Effect::Ssh { .. }
        | Effect::Reboot { .. }
        | Effect::Netboot { .. }
        | Effect::Rma { .. }
        | Effect::Power { .. }
        | Effect::Device { .. }
        | Effect::Stage { .. }
        | Effect::ChildRuns { .. } => step.effect.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::DesiredPower;
    use crate::id::MachineId;
    use crate::machine::{Labels, MachineSpec};
    use crate::plan::{default_plan, variants};
    use crate::time::Timestamp;

    fn machine(cluster: &str) -> Machine {
        let spec = MachineSpec { target_cluster_ref: cluster.into(), ..MachineSpec::default() };
        Machine::new(MachineId::trusted("m-1"), spec, Labels::new(), Timestamp::default())
    }

    fn names(steps: &[RunStep]) -> Vec<&str> {
        steps.iter().map(|step| step.name.as_str()).collect()
    }

    #[test]
    fn a_machine_without_a_cluster_skips_what_needs_one() {
        let defaults = Defaults::default();
        let plan = default_plan(RunType::Reimage).unwrap();
        let params = with_defaults(RunType::Reimage, Params::new(), &defaults);
        let with = plan.resolve(&machine("cluster-a"), &params, &defaults).unwrap();
        let without = plan.resolve(&machine(""), &params, &defaults).unwrap();
        assert_eq!(names(&with), ["set-netboot", "repave-os", "reboot", "join-cluster", "verify"]);
        assert_eq!(names(&without), ["set-netboot", "repave-os", "reboot"]);
        assert_eq!(with[1].effect, Effect::Repave { image: "ubuntu-2204".into() });
        let Effect::Join { cluster_ref, .. } = &with[3].effect else { panic!("{with:?}") };
        assert_eq!(cluster_ref, "cluster-a");

        let own = Plan { built_in: false, ..plan };
        let refusal = own.resolve(&machine(""), &params, &defaults).unwrap_err();
        assert!(refusal.message.contains("join-cluster"), "{refusal}");
    }

    #[test]
    fn no_built_in_plan_resolves_to_nothing() {
        let defaults = Defaults::default();
        let own = RunType::PLANNED.map(|run_type| (run_type, default_plan(run_type).unwrap()));
        for (run_type, plan) in own.into_iter().chain(variants()) {
            let params = Params::from([(NETWORK.into(), "network: {}".into())]);
            let params = with_defaults(run_type, checked_params(params).unwrap(), &defaults);
            for cluster in ["", "cluster-a"] {
                let steps = plan.resolve(&machine(cluster), &params, &defaults).unwrap();
                assert!(!steps.is_empty(), "{}", plan.id);
            }
        }
    }

    #[test]
    fn a_drain_ends_before_its_step_and_needs_a_cluster() {
        let rma = default_plan(RunType::Rma).unwrap();
        let defaults = Defaults::default();
        let with = rma.resolve(&machine("cluster-a"), &Params::new(), &defaults).unwrap();
        let without = rma.resolve(&machine(""), &Params::new(), &defaults).unwrap();
        assert_eq!(names(&with), ["drain", "record", "power-off", "mark"]);
        assert_eq!(names(&without), ["record", "power-off", "mark"]);
        let deadline = |step: &RunStep| {
            let Effect::Drain { cluster_ref, deadline_seconds } = &step.effect else {
                panic!("{:?}", step.effect)
            };
            (cluster_ref.clone(), *deadline_seconds)
        };
        assert_eq!(deadline(&with[0]), ("cluster-a".into(), Some(1_770)));
        // A user-defined plan keeps the step, which reports that there was nothing to do.
        let own = Plan { built_in: false, ..rma };
        let alone = own.resolve(&machine(""), &Params::new(), &defaults).unwrap();
        assert_eq!(deadline(&alone[0]), (String::new(), Some(1_770)));
        for (given, timeout, expected) in [
            (None, 1, 1),
            (None, 10, 9),
            (None, 600, 570),
            (Some(20), 600, 20),
            (Some(599), 600, 570),
        ] {
            let effect = Effect::Drain { cluster_ref: "c".into(), deadline_seconds: given };
            let Effect::Drain { deadline_seconds, .. } = within(effect, timeout) else { panic!() };
            assert_eq!(deadline_seconds, Some(expected), "{given:?} within {timeout}");
        }
    }

    #[test]
    fn a_run_says_how_power_is_switched_off_where_its_plan_does_not() {
        let defaults = Defaults::default();
        let params = |pairs: &[(&str, &str)]| -> Params {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let power_off = |graceful_seconds, force| PowerOffPolicy { graceful_seconds, force };
        let off = variants().into_iter().find(|(_, plan)| plan.id.as_str() == "plan-power-off-v1");
        let off = off.unwrap().1;
        let resolved = |plan: &Plan, pairs: &[(&str, &str)]| {
            let step = plan.resolve(&machine(""), &params(pairs), &defaults).unwrap().remove(0);
            (step.effect.power_off_policy().unwrap(), step.timeout_seconds)
        };
        let both = [(GRACEFUL_SECONDS, "900"), (FORCE, "false")];
        assert_eq!(resolved(&off, &[]), (PowerOffPolicy::PROVIDER_DEFAULT, 300));
        assert_eq!(resolved(&off, &both), (power_off(Some(900), Some(false)), 1_200));
        assert_eq!(resolved(&off, &[(GRACEFUL_SECONDS, "0")]), (power_off(Some(0), None), 300));
        let mut own = Plan { built_in: false, ..off };
        *own.steps[0].effect.power_off_policy_mut().unwrap() = power_off(Some(10), None);
        assert_eq!(resolved(&own, &both), (power_off(Some(10), Some(false)), 300));
        own.steps[0].timeout_seconds = None;
        *own.steps[0].effect.power_off_policy_mut().unwrap() = power_off(Some(3_000), None);
        assert_eq!(resolved(&own, &[]), (power_off(Some(3_000), None), 3_300));
        *own.steps[0].effect.power_off_policy_mut().unwrap() = power_off(Some(0), None);
        let refusal = own.resolve(&machine(""), &params(&both), &defaults).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("params[graceful_seconds]"));
        // Powering on has no power-off policy.
        let on =
            default_plan(RunType::Power).unwrap().resolve(&machine(""), &params(&both), &defaults);
        let expected =
            Effect::Power { to: DesiredPower::On, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
        assert_eq!(on.unwrap()[0].effect, expected);
    }

    #[test]
    fn parameters_are_checked() {
        let defaults = Defaults::default();
        let one = |name: &str, value: &str| Params::from([(name.to_string(), value.to_string())]);
        let refusal = checked_params(one("colour", "red")).unwrap_err();
        assert!(refusal.message.contains("not a parameter"));
        assert!(checked_params(one(IMAGE_REF, "a\nb")).is_err());
        assert!(checked_params(one(NETWORK, "a\u{0}b")).is_err());
        for (name, value) in
            [(GRACEFUL_SECONDS, "soon"), (GRACEFUL_SECONDS, "-1"), (GRACEFUL_SECONDS, "99999")]
        {
            let refusal = checked_params(one(name, value)).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("params[graceful_seconds]"), "{value}");
        }
        assert!(checked_params(one(FORCE, "maybe")).unwrap_err().message.contains("true or false"));
        assert!(checked_params(one(FORCE, "")).unwrap().is_empty());
        let net = default_plan(RunType::NetReconfig).unwrap();
        let refusal = net.resolve(&machine(""), &Params::new(), &defaults).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("params[network]"));
    }
}
