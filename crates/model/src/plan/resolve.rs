//! Resolves a plan into the steps of one run on one machine.

use super::{MAX_TIMEOUT_SECONDS, Plan, RunType, Step, check_document};
use crate::effect::{DiskContent, DrainOptions, Effect, Executor, PowerOffPolicy};
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
pub const DRAIN_UNMANAGED_PODS: &str = "drain_unmanaged_pods";
pub const DRAIN_EMPTYDIR: &str = "drain_emptydir";
pub const DRAIN_GRACE_SECONDS: &str = "drain_grace_seconds";
pub const DRAIN_SELECTOR: &str = "drain_selector";

/// All names, for the refusal of another one.
const NAMES: [&str; 8] = [
    IMAGE_REF,
    NETWORK,
    GRACEFUL_SECONDS,
    FORCE,
    DRAIN_UNMANAGED_PODS,
    DRAIN_EMPTYDIR,
    DRAIN_GRACE_SECONDS,
    DRAIN_SELECTOR,
];

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

    /// The longest time that the step may take: every attempt up to its timeout. A MAAS that is
    /// busy is waited for during one more.
    pub fn time_limit(&self) -> Duration {
        let in_maas = matches!(self.effect.facts().executor, Executor::SiteProvider(_));
        self.timeout().saturating_mul(1 + self.max_retries + u32::from(in_maas))
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
            DRAIN_UNMANAGED_PODS | DRAIN_EMPTYDIR | DRAIN_GRACE_SECONDS | DRAIN_SELECTOR => {}
            _ => {
                let instead = format!(
                    "the parameters are {}; a gate is overridden with --override GATE --reason …",
                    NAMES.join(", ")
                );
                return Err(Refusal::invalid(&field, "is not a parameter", instead));
            }
        }
    }
    params.retain(|_, value| !value.trim().is_empty());
    power_off_policy_of(&params)?.check(|label| format!("params[{label}]"))?;
    drain_options_of(&params)?.check(|label| format!("params[drain_{label}]"))?;
    Ok(params)
}

/// The power-off policy that the run's parameters request.
fn power_off_policy_of(params: &Params) -> Result<PowerOffPolicy, Refusal> {
    let instead = "use a number of seconds; 0 cuts the power at once";
    let graceful_seconds = seconds_of(params, GRACEFUL_SECONDS, instead)?;
    Ok(PowerOffPolicy { graceful_seconds, force: flag_of(params, FORCE)? })
}

/// Reads the drain options from the parameters of a run.
fn drain_options_of(params: &Params) -> Result<DrainOptions, Refusal> {
    Ok(DrainOptions {
        unmanaged_pods: flag_of(params, DRAIN_UNMANAGED_PODS)?.unwrap_or(false),
        emptydir: flag_of(params, DRAIN_EMPTYDIR)?.unwrap_or(false),
        grace_seconds: seconds_of(params, DRAIN_GRACE_SECONDS, "use a number of seconds")?,
        selector: params.get(DRAIN_SELECTOR).cloned().unwrap_or_default(),
    })
}

fn seconds_of(params: &Params, name: &str, instead: &str) -> Result<Option<u32>, Refusal> {
    let Some(text) = params.get(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| bad_param(name, text, instead))
}

fn flag_of(params: &Params, name: &str) -> Result<Option<bool>, Refusal> {
    match params.get(name).map(String::as_str) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(bad_param(name, other, "use true or false")),
    }
}

fn bad_param(name: &str, value: &str, instead: &str) -> Refusal {
    let shown: String = value.chars().take(64).collect();
    Refusal::invalid(&format!("params[{name}]"), format!("is {shown:?}"), instead)
}

impl Plan {
    /// The parameters with which a run of this plan is resolved and recorded. `image_ref` is the
    /// image that the plan installs: its own, the requested one, or the server's default for a
    /// reimage. A request for another image than the plan's own is refused.
    pub fn complete_params(
        &self,
        run_type: RunType,
        mut params: Params,
        defaults: &Defaults,
    ) -> Result<Params, Refusal> {
        let images = self.steps.iter().filter_map(|step| match step.effect.facts().disk {
            Some(DiskContent::Image(image)) => Some((step, image)),
            Some(DiskContent::SiteImage(_) | DiskContent::Nothing) | None => None,
        });
        let (own, open): (Vec<_>, Vec<_>) = images.partition(|(_, image)| !image.is_empty());
        if let Some(requested) = params.get(IMAGE_REF) {
            let other = own.iter().find(|(_, image)| image != requested);
            let problem = match other {
                Some((step, image)) => {
                    let (name, id) = (&step.name, &self.id);
                    format!("is {requested:?}, and step {name} of {id} installs {image:?}")
                }
                None if own.is_empty() && open.is_empty() => {
                    format!("is {requested:?}, and no step of {} installs an image", self.id)
                }
                None => return Ok(params),
            };
            let instead = "leave image_ref out, or use a plan without an image of its own";
            return Err(Refusal::invalid("params[image_ref]", problem, instead));
        }
        let used = match open.is_empty() {
            true => own.last().map(|(_, image)| *image),
            false => (run_type == RunType::Reimage).then_some(defaults.image_ref.as_str()),
        };
        if let Some(image) = used {
            params.insert(IMAGE_REF.into(), image.into());
        }
        Ok(params)
    }

    /// The steps of a run of this plan. If the machine has no cluster, a built-in plan skips the
    /// steps that need one; a user-defined plan is refused.
    pub fn resolve(
        &self,
        machine: &Machine,
        params: &Params,
        defaults: &Defaults,
    ) -> Result<Vec<RunStep>, Refusal> {
        let requested = power_off_policy_of(params)?;
        let drained = drain_options_of(params)?;
        let mut steps = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let effect = match fill_in(step, machine, params) {
                Ok(effect) if self.built_in && moot(&effect) => continue,
                Ok(effect) => effect,
                Err(Gap::Cluster) if self.built_in => continue,
                Err(gap) => return Err(gap.refusal(step, machine)),
            };
            check_selectors(step, &drained)?;
            let timeout_seconds = step.timeout_seconds.unwrap_or(defaults.timeout_seconds);
            let resolved = RunStep {
                name: step.name.clone(),
                timeout_seconds,
                max_retries: step.max_retries.unwrap_or(defaults.max_retries),
                effect: within(effect, timeout_seconds, &drained),
            };
            steps.push(resolved.with_power_off(requested, step.timeout_seconds.is_none())?);
        }
        // A plan of which every step needs a cluster has nothing to do without one.
        match self.steps.first().filter(|_| steps.is_empty()) {
            Some(step) => Err(Gap::Cluster.refusal(step, machine)),
            None => Ok(steps),
        }
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

/// Refuses a requested selector where the step has another: it would be dropped silently.
fn check_selectors(step: &Step, requested: &DrainOptions) -> Result<(), Refusal> {
    let Effect::Drain { options, .. } = &step.effect else { return Ok(()) };
    let (own, requested) = (&options.selector, &requested.selector);
    if own.is_empty() || requested.is_empty() || own == requested {
        return Ok(());
    }
    let problem = format!("is {requested:?}, and step {} of the plan has {own:?}", step.name);
    let instead = "leave drain_selector out, or use a plan without a selector of its own";
    Err(Refusal::invalid(&format!("params[{DRAIN_SELECTOR}]"), problem, instead))
}

/// Limits the deadline of a drain so that it ends shortly before its step: the remaining time is
/// for reporting what blocked it. What the plan leaves open about pods comes from the parameters.
fn within(effect: Effect, timeout_seconds: u32, requested: &DrainOptions) -> Effect {
    let Effect::Drain { cluster_ref, deadline_seconds, options } = effect else { return effect };
    let rest = (timeout_seconds / 10).clamp(1, LAST_WORDS_SECONDS);
    let most = timeout_seconds.saturating_sub(rest).max(1);
    let deadline_seconds = Some(deadline_seconds.unwrap_or(most).min(most));
    Effect::Drain { cluster_ref, deadline_seconds, options: options.or(requested) }
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
        Effect::Join { cluster_ref, labels, taints, kubeadm } => Effect::Join {
            cluster_ref: cluster(cluster_ref).ok_or(Gap::Cluster)?,
            labels: labels.clone(),
            taints: taints.clone(),
            kubeadm: kubeadm.clone(),
        },
        // For a machine in no cluster these steps succeed and report that there is nothing to do.
        Effect::Drain { cluster_ref, deadline_seconds, options } => Effect::Drain {
            cluster_ref: cluster(cluster_ref).unwrap_or_default(),
            deadline_seconds: *deadline_seconds,
            options: options.clone(),
        },
        Effect::Uncordon { cluster_ref, own } => {
            Effect::Uncordon { cluster_ref: cluster(cluster_ref).unwrap_or_default(), own: *own }
        }
        Effect::Leave { cluster_ref, joined_by } => {
            let cluster_ref = cluster(cluster_ref).ok_or(Gap::Cluster)?;
            Effect::Leave { cluster_ref, joined_by: joined_by.clone() }
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
