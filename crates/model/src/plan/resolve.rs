//! From a plan to what one run will really do on one machine.

use super::{Plan, RunType, Step, check_document};
use crate::effect::{Effect, RmaAction};
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

/// What the server fills in where a plan is silent.
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

/// A step with nothing left open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Refuses parameters nobody would read.
pub fn checked_params(mut params: Params) -> Result<Params, Refusal> {
    for (name, value) in &params {
        let field = format!("params[{}]", name.chars().take(64).collect::<String>());
        match name.as_str() {
            IMAGE_REF => text::short(&field, value)?,
            NETWORK => check_document(&field, value)?,
            _ => {
                let instead = format!("the parameters are {IMAGE_REF} and {NETWORK}");
                return Err(Refusal::invalid(&field, "is not a parameter", instead));
            }
        }
    }
    params.retain(|_, value| !value.is_empty());
    Ok(params)
}

/// The parameters of a run, with what the server chooses where the client did not.
pub fn with_defaults(run_type: RunType, mut params: Params, defaults: &Defaults) -> Params {
    if run_type == RunType::Reimage && !params.contains_key(IMAGE_REF) {
        params.insert(IMAGE_REF.into(), defaults.image_ref.clone());
    }
    params
}

impl Plan {
    /// The steps of a run of this plan. A built-in plan leaves out what a machine without a cluster
    /// cannot do; a plan that somebody wrote is taken at its word and refused.
    pub fn resolve(
        &self,
        machine: &Machine,
        params: &Params,
        defaults: &Defaults,
    ) -> Result<Vec<RunStep>, Refusal> {
        let mut steps = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let effect = match fill_in(step, machine, params) {
                Ok(effect) => effect,
                Err(Gap::Cluster) if self.built_in => continue,
                Err(gap) => return Err(gap.refusal(step, machine)),
            };
            steps.push(RunStep {
                name: step.name.clone(),
                timeout_seconds: step.timeout_seconds.unwrap_or(defaults.timeout_seconds),
                max_retries: step.max_retries.unwrap_or(defaults.max_retries),
                effect,
            });
        }
        Ok(steps)
    }
}

/// What neither the plan, the parameters nor the machine says.
enum Gap {
    Cluster,
    Image,
    Network,
}

impl Gap {
    fn refusal(&self, step: &Step, machine: &Machine) -> Refusal {
        let name = &step.name;
        let (field, said, instead) = match self {
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
        Refusal::invalid(field, said, instead)
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
        Effect::Join { cluster_ref } => {
            Effect::Join { cluster_ref: cluster(cluster_ref).ok_or(Gap::Cluster)? }
        }
        Effect::Leave { cluster_ref } => {
            Effect::Leave { cluster_ref: cluster(cluster_ref).ok_or(Gap::Cluster)? }
        }
        Effect::Verify { cluster_ref, expect, advisory } => {
            let found = cluster(cluster_ref);
            // An advisory look at no cluster is still worth its answer: nothing is there to drain.
            let found = if *advisory { Some(found.unwrap_or_default()) } else { found };
            let cluster_ref = found.ok_or(Gap::Cluster)?;
            Effect::Verify { cluster_ref, expect: *expect, advisory: *advisory }
        }
        Effect::Ssh { .. } | Effect::Reboot { .. } | Effect::Netboot { .. } => step.effect.clone(),
        Effect::Rma { action } => match action {
            RmaAction::Record | RmaAction::PowerOff | RmaAction::Mark => step.effect.clone(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MachineId;
    use crate::machine::{Labels, MachineSpec};
    use crate::plan::default_plan;
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
        let plan = default_plan(RunType::Reimage);
        let params = with_defaults(RunType::Reimage, Params::new(), &defaults);
        let with = plan.resolve(&machine("cluster-a"), &params, &defaults).unwrap();
        let without = plan.resolve(&machine(""), &params, &defaults).unwrap();
        assert_eq!(names(&with), ["set-netboot", "repave-os", "reboot", "join-cluster", "verify"]);
        assert_eq!(names(&without), ["set-netboot", "repave-os", "reboot"]);
        assert_eq!(with[1].effect, Effect::Repave { image: "ubuntu-2204".into() });
        assert_eq!(with[3].effect, Effect::Join { cluster_ref: "cluster-a".into() });

        let own = Plan { built_in: false, ..plan };
        let refusal = own.resolve(&machine(""), &params, &defaults).unwrap_err();
        assert!(refusal.said.contains("join-cluster"), "{refusal}");
    }

    #[test]
    fn no_default_plan_resolves_to_nothing() {
        let defaults = Defaults::default();
        for run_type in RunType::ALL {
            let params = Params::from([(NETWORK.into(), "network: {}".into())]);
            let params = with_defaults(run_type, checked_params(params).unwrap(), &defaults);
            for cluster in ["", "cluster-a"] {
                let steps =
                    default_plan(run_type).resolve(&machine(cluster), &params, &defaults).unwrap();
                assert!(!steps.is_empty(), "{run_type:?}");
            }
        }
    }

    #[test]
    fn parameters_are_checked() {
        let defaults = Defaults::default();
        let one = |name: &str, value: &str| Params::from([(name.to_string(), value.to_string())]);
        let refusal = checked_params(one("colour", "red")).unwrap_err();
        assert!(refusal.said.contains("not a parameter"));
        assert!(checked_params(one(IMAGE_REF, "a\nb")).is_err());
        assert!(checked_params(one(NETWORK, "a\u{0}b")).is_err());
        let net = default_plan(RunType::NetReconfig);
        let refusal = net.resolve(&machine(""), &Params::new(), &defaults).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("params[network]"));
    }
}
