//! Plans: short lists of typed steps, and the built-in catalogue.
//!
//! A plan never changes after it was created. When a run starts, [`Plan::resolve`] fills in what
//! the plan left open (image, cluster, timeouts), and the run keeps this resolved copy.

mod catalogue;
mod resolve;

pub use catalogue::{
    Maintenance, PowerChange, boot_from_disk_plan, built_in, default_plan, node_plan_id,
    node_plans, variants,
};
pub use resolve::{
    DRAIN_EMPTYDIR, DRAIN_GRACE_SECONDS, DRAIN_SELECTOR, DRAIN_UNMANAGED_PODS, Defaults, FORCE,
    GRACEFUL_SECONDS, IMAGE_REF, NETWORK, Params, RunStep, checked_params,
};

use crate::effect::{
    DesiredPower, Effect, PowerOffPolicy, RebootMode, RmaAction, check_node_labels, check_taints,
};
use crate::id::PlanId;
use crate::refusal::Refusal;
use crate::text;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RunType {
    Reboot,
    Reimage,
    EnterMaintenance,
    ExitMaintenance,
    Upgrade,
    NetReconfig,
    Rma,
    Power,
    /// Brings a machine back from RMA.
    ExitRma,
    /// Joins an installed machine to its cluster.
    Join,
    /// On a rack: takes its devices through a maintenance.
    RackMaintenance,
    /// On one device, started by a rack's maintenance or by the device's own lifecycle: install
    /// firmware, set up the fabric, read and configure, check.
    Firmware,
    Fabric,
    Intake,
    Check,
    /// On a machine: onboard, decommission or drain its node.
    Onboard,
    Decommission,
    NodeDrain,
}

impl RunType {
    /// The types that a plan can have and that a request can start on a machine.
    pub const PLANNED: [RunType; 10] = [
        Self::Reboot,
        Self::Reimage,
        Self::EnterMaintenance,
        Self::ExitMaintenance,
        Self::Upgrade,
        Self::NetReconfig,
        Self::Rma,
        Self::Power,
        Self::ExitRma,
        Self::Join,
    ];

    pub const ALL: [RunType; 18] = [
        Self::Reboot,
        Self::Reimage,
        Self::EnterMaintenance,
        Self::ExitMaintenance,
        Self::Upgrade,
        Self::NetReconfig,
        Self::Rma,
        Self::Power,
        Self::ExitRma,
        Self::Join,
        Self::RackMaintenance,
        Self::Firmware,
        Self::Fabric,
        Self::Intake,
        Self::Check,
        Self::Onboard,
        Self::Decommission,
        Self::NodeDrain,
    ];

    /// The types that work on a node. Their stages check what holds already, so such a run can
    /// always start at its first step.
    pub const NODES: [RunType; 3] = [Self::Onboard, Self::Decommission, Self::NodeDrain];

    /// The types that a device's lifecycle starts again and again. The server's log and
    /// `operation list` leave them out: they would hide the operations that a person asked for.
    pub const ROUTINE: [RunType; 2] = [Self::Intake, Self::Check];

    /// The customer's name for it, as in OperationType.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reboot => "REBOOT",
            Self::Reimage => "REIMAGE",
            Self::EnterMaintenance => "ENTER_MAINTENANCE",
            Self::ExitMaintenance => "EXIT_MAINTENANCE",
            Self::Upgrade => "UPGRADE",
            Self::NetReconfig => "NET_RECONFIG",
            Self::Rma => "RMA",
            Self::Power => "POWER",
            Self::ExitRma => "EXIT_RMA",
            Self::Join => "JOIN",
            Self::RackMaintenance => "RACK_MAINTENANCE",
            Self::Firmware => "FIRMWARE",
            Self::Fabric => "FABRIC",
            Self::Intake => "INTAKE",
            Self::Check => "CHECK",
            Self::Onboard => "ONBOARD",
            Self::Decommission => "DECOMMISSION",
            Self::NodeDrain => "NODE_DRAIN",
        }
    }

    /// The operator's name for it, as in Run.type, where a reimage is called a repave.
    pub const fn run_word(self) -> &'static str {
        if matches!(self, Self::Reimage) { "REPAVE" } else { self.as_str() }
    }

    pub fn is_routine(self) -> bool {
        Self::ROUTINE.contains(&self)
    }

    /// Accepts the customer's and the operator's name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name || kind.run_word() == name)
    }

    pub fn parse_field(field: &str, name: &str) -> Result<Self, Refusal> {
        if name.is_empty() {
            return Err(Refusal::missing(field));
        }
        Self::parse(name).filter(|kind| Self::PLANNED.contains(kind)).ok_or_else(|| {
            let words: Vec<_> = Self::PLANNED.iter().map(|kind| kind.run_word()).collect();
            let shown: String = name.chars().take(text::MAX_SHORT).collect();
            Refusal::invalid(
                field,
                format!("{shown:?} is not a run type"),
                format!("use one of {}", words.join(", ")),
            )
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OnFailure {
    /// The phase stays as the operator set it.
    #[default]
    KeepPhase,
    /// The older behaviour: a failed or canceled run moves the machine to MAINTENANCE.
    EnterMaintenance,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub id: PlanId,
    pub display_name: String,
    pub steps: Vec<Step>,
    pub default_for: Option<RunType>,
    pub built_in: bool,
    pub on_failure: OnFailure,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub name: String,
    pub timeout_seconds: Option<u32>,
    pub max_retries: Option<u32>,
    pub effect: Effect,
}

pub const MAX_STEPS: usize = 64;
pub const MAX_RETRIES: u32 = 100;
pub const MAX_TIMEOUT_SECONDS: u32 = 7 * 24 * 3_600;
/// The length limit of a command or a network document, in bytes.
pub const MAX_DOCUMENT: usize = 64 * 1_024;
/// An undo step is named `undo-<step>`, so steps of plans may not have this prefix.
pub const UNDO_PREFIX: &str = "undo-";

impl Plan {
    /// Checks that the plan can be run; a refusal names the field.
    pub fn checked(self) -> Result<Self, Refusal> {
        text::check_short("plan.display_name", &self.display_name)?;
        if self.steps.is_empty() {
            return Err(Refusal::invalid("plan.steps", "is empty", "give at least one step"));
        }
        if self.steps.len() > MAX_STEPS {
            let problem = format!("has {} entries", self.steps.len());
            return Err(Refusal::invalid(
                "plan.steps",
                problem,
                format!("use at most {MAX_STEPS}"),
            ));
        }
        for (index, step) in self.steps.iter().enumerate() {
            let field = format!("plan.steps[{index}]");
            step.check(&field)?;
            if let Some(first) = self.steps[..index].iter().position(|one| one.name == step.name) {
                return Err(Refusal::invalid(
                    &format!("{field}.name"),
                    format!("{:?} is also the name of steps[{first}]", step.name),
                    "give every step a name of its own",
                ));
            }
        }
        Ok(self)
    }

    /// True if both plans have the same content, apart from id and origin.
    pub fn same_work(&self, other: &Self) -> bool {
        self.steps == other.steps
            && self.on_failure == other.on_failure
            && self.display_name == other.display_name
    }
}

impl Step {
    fn check(&self, field: &str) -> Result<(), Refusal> {
        check_name(&format!("{field}.name"), &self.name)?;
        let limit = |name: &str, value: Option<u32>, least: u32, most: u32| match value {
            Some(value) if value < least || value > most => Err(Refusal::invalid(
                &format!("{field}.{name}"),
                format!("is {value}"),
                format!("use {least} to {most}, or leave it out for the server's default"),
            )),
            Some(_) | None => Ok(()),
        };
        limit("timeout_seconds", self.timeout_seconds, 1, MAX_TIMEOUT_SECONDS)?;
        limit("max_retries", self.max_retries, 0, MAX_RETRIES)?;
        self.check_effect(field)
    }

    fn check_effect(&self, field: &str) -> Result<(), Refusal> {
        match &self.effect {
            Effect::Ssh { command, .. } => {
                let field = format!("{field}.ssh.command");
                if command.trim().is_empty() {
                    return Err(Refusal::missing(&field));
                }
                check_document(&field, command)
            }
            Effect::Net { document } => check_document(&format!("{field}.net.document"), document),
            Effect::Repave { image } => text::check_short(&format!("{field}.repave.image"), image),
            Effect::Join { cluster_ref, labels, taints, kubeadm } => {
                check_document(&format!("{field}.join.kubeadm.config"), &kubeadm.config)?;
                kubeadm.check(&format!("{field}.join.kubeadm"))?;
                text::check_short(&format!("{field}.join.cluster_ref"), cluster_ref)?;
                check_node_labels(&format!("{field}.join.labels"), labels)?;
                check_taints(&format!("{field}.join.taints"), taints)
            }
            Effect::Drain { cluster_ref, deadline_seconds, options } => {
                text::check_short(&format!("{field}.drain.cluster_ref"), cluster_ref)?;
                options.check(|name| format!("{field}.drain.options.{name}"))?;
                let field = format!("{field}.drain.deadline_seconds");
                match deadline_seconds {
                    Some(0) => Err(Refusal::invalid(&field, "is 0", "use at least 1")),
                    Some(seconds) => self.check_within(&field, *seconds),
                    None => Ok(()),
                }
            }
            Effect::Leave { cluster_ref, .. }
            | Effect::Verify { cluster_ref, .. }
            | Effect::Uncordon { cluster_ref, .. } => {
                let name = self.effect.name();
                text::check_short(&format!("{field}.{name}.cluster_ref"), cluster_ref)
            }
            Effect::Reboot { mode: RebootMode::Bmc, power_off }
            | Effect::Rma { action: RmaAction::PowerOff, power_off }
            | Effect::Power { to: DesiredPower::Off, power_off } => {
                self.check_power_off(field, *power_off)
            }
            Effect::Reboot { mode: RebootMode::InBand, power_off } => {
                let why = "has no use in a reboot from within: the host decides how it goes down";
                power_off.check_absent(|name| format!("{field}.reboot.{name}"), why)
            }
            Effect::Rma { action: RmaAction::Record | RmaAction::Mark, power_off } => {
                let why = "is only for POWER_OFF";
                power_off.check_absent(|name| format!("{field}.rma.{name}"), why)
            }
            Effect::Power { to: DesiredPower::On, power_off } => {
                power_off.check_absent(|name| format!("{field}.power.{name}"), "is only for OFF")
            }
            Effect::Netboot { .. } => Ok(()),
            Effect::Stage { .. } => Err(Refusal::invalid(
                &format!("{field}.stage"),
                "is asked by the onboarding or decommission of a node only",
                "use `farrier node onboard` or `farrier node decommission`",
            )),
            Effect::Device { .. } | Effect::ChildRuns { .. } => Err(Refusal::invalid(
                &format!("{field}.{}", self.effect.name()),
                "is asked by the lifecycle of a device or a rack only",
                "use `farrier rack maintenance start` or `farrier component firmware update`",
            )),
        }
    }

    fn check_power_off(&self, field: &str, power_off: PowerOffPolicy) -> Result<(), Refusal> {
        let at = |name: &str| format!("{field}.{}.{name}", self.effect.name());
        power_off.check(at)?;
        match power_off.graceful_seconds {
            Some(seconds) => self.check_within(&at("graceful_seconds"), seconds),
            None => Ok(()),
        }
    }

    /// A time limit inside the step must be shorter than the step's timeout.
    fn check_within(&self, field: &str, seconds: u32) -> Result<(), Refusal> {
        match self.timeout_seconds {
            Some(limit) if seconds >= limit => Err(Refusal::invalid(
                field,
                format!("is {seconds}, and the step's timeout_seconds is {limit}"),
                "use less, or give the step more time",
            )),
            Some(_) | None if seconds >= MAX_TIMEOUT_SECONDS => Err(Refusal::invalid(
                field,
                format!("is {seconds}"),
                format!("use less than {MAX_TIMEOUT_SECONDS}"),
            )),
            Some(_) | None => Ok(()),
        }
    }
}

fn check_name(field: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::missing(field));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.len() > 63 || !name.chars().all(legal) {
        let shown: String = name.chars().take(63).collect();
        let instead = "use 1 to 63 letters, digits, '-', '_' or '.'";
        return Err(Refusal::invalid(field, format!("is {shown:?}"), instead));
    }
    if name.starts_with(UNDO_PREFIX) {
        let instead = "names that begin with `undo-` belong to the steps that take others back";
        return Err(Refusal::invalid(field, format!("is {name:?}"), instead));
    }
    Ok(())
}

/// Checks a multi-line text: line breaks and tabs are allowed, other control characters are not.
fn check_document(field: &str, text: &str) -> Result<(), Refusal> {
    if text.len() > MAX_DOCUMENT {
        let problem = format!("is {} bytes long", text.len());
        return Err(Refusal::invalid(field, problem, format!("use at most {MAX_DOCUMENT} bytes")));
    }
    match text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        None => Ok(()),
        Some(bad) => {
            let problem = format!("contains the control character {bad:?}");
            Err(Refusal::invalid(field, problem, "use printable characters and line breaks"))
        }
    }
}
