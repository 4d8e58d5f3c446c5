//! Repairs: the commands that remove the cause of a fault, and those that continue the run.
//!
//! One match assigns every fault code its repairs, best first. The arguments of a command come
//! from the incident. The page of the code names the same commands.

use super::{Fault, FaultCode};
use crate::condition::{ConditionType, NOT_JOINED, POWERED_OFF};
use crate::effect::Effect;
use crate::gate::without_overrides;
use crate::machine::Machine;
use crate::node::Node;
use crate::plan::{Maintenance, RunType};
use crate::run::Run;
use crate::run::actions::{Action, RestartMode};
use crate::target::TargetKind;
use crate::text::shell_word;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    SetCredential,
    /// Sets a credential again with a binding that includes the peer.
    BindCredential,
    /// Allows a login that a BMC refused; only credentials of BMCs are locked out by address.
    UnlockBmc,
    TestBmc,
    /// Deletes the pin of a peer whose identity changed.
    ForgetIdentity,
    /// Pins the identity that the peer showed.
    PinIdentity,
    ListImages,
    AddImage,
    ShowImage,
    NetbootConfig,
    ListFirmware,
    ShowFirmware,
    /// Requests the maintenance of the rack with the default firmware.
    DefaultFirmware,
    ListPlans,
    ShowSite,
    ShowNode,
    /// Checks the access to the cluster of the failed step.
    CheckCluster,
    /// Joins a machine that a check did not find in its cluster.
    JoinCluster,
    /// Switches on a machine that is observed as off.
    PowerOn,
    /// Requests the drain with the options that evict the pods that stopped it.
    DrainWithOptions,
    SetRootDisk,
    /// Corrects the spec of a machine that cannot be told from others.
    SetIdentifiers,
    ReadConsole,
    ShowTarget,
    /// Explains the child run that failed.
    ShowChild,
    ShowChildren,
    Act(Action),
    Restart(RestartMode),
    Logs,
}

/// The objects and facts that the arguments of a repair come from.
#[derive(Debug, Clone, Copy)]
pub struct Incident<'a> {
    pub fault: &'a Fault,
    pub run: Option<&'a Run>,
    pub machine: Option<&'a Machine>,
    pub node: Option<&'a Node>,
}

const RETRY: Repair = Repair::Act(Action::RetryStep);
const RESUME: Repair = Repair::Act(Action::Resume);
const ADOPT: Repair = Repair::Act(Action::Adopt);
const RERUN: Repair = Repair::Restart(RestartMode::Rerun);
const RESTART_CLEAN: Repair = Repair::Restart(RestartMode::RestartClean);

impl FaultCode {
    /// The repairs of a fault, best first: first the cause, then the run, then what only reads.
    pub const fn repairs(self) -> &'static [Repair] {
        use Repair::*;
        match self {
            Self::BmcUnreachable | Self::BmcGarbled => &[TestBmc, RETRY, RERUN, Logs],
            Self::HostUnreachable => &[PowerOn, RETRY, RERUN, Logs],
            Self::BmcBusy
            | Self::DatabaseUnreachable
            | Self::LocalResources
            | Self::MaasBusy
            | Self::MaasFailed
            | Self::EffectFailed
            | Self::ReadBackDiffers
            | Self::CommandFailed
            | Self::DeploySilent
            | Self::FabricFailed
            | Self::TaskFailed
            | Self::NodeNotClean
            | Self::PxeInterfaceUnfixable => &[RETRY, RERUN, Logs],
            Self::EvictionBlocked => &[DrainWithOptions, RETRY, RERUN, Logs],
            Self::ClusterUnreachable => &[CheckCluster, RETRY, RERUN, Logs],
            Self::NotInCluster => &[CheckCluster, JoinCluster, RETRY, RERUN, Logs],
            Self::CommissioningFailed => &[RERUN, RETRY, Logs],
            // An unreachable MAAS may come back. The fault's page describes how a node is removed
            // without it; the command is never offered.
            Self::MaasUnreachable => &[ShowSite, RETRY, RERUN],
            Self::AgentSilent => &[ShowNode, RETRY, RERUN],
            Self::SeedFailed => &[ShowSite, RETRY, RESTART_CLEAN],
            Self::NetbootSilent => &[NetbootConfig, ShowTarget, RETRY, RERUN, Logs],
            Self::ChecksumWrong => &[ShowImage, RETRY, RERUN],
            Self::FirmwareUnfetched => &[ShowFirmware, RETRY, RERUN, Logs],
            Self::FirmwareFailed => &[ReadConsole, RETRY, RERUN, Logs],
            Self::FirmwareDiffers => &[ShowFirmware, ADOPT, RETRY, Logs],
            Self::FirmwareUnknown => &[ListFirmware, DefaultFirmware, RERUN],
            Self::CandidatesConflict => &[SetIdentifiers, RETRY, RERUN],
            Self::BootDiskMissing => &[ShowSite, RETRY, RERUN],
            // The result of the last attempt must be read before anything is repeated.
            Self::StepTimeout => &[RESUME, RETRY, Logs],
            Self::AnswerLost | Self::AnswerGarbled => &[RESUME, ADOPT, Logs],
            Self::TaskLost => &[RESUME, ADOPT, ReadConsole, RETRY],
            // The operator decides whether the effect happened.
            Self::OutcomeUnknown => &[RESUME, ADOPT, RETRY, RESTART_CLEAN, Logs],
            Self::WorkerPanicked | Self::ProtocolBroken => &[RESUME, ADOPT, RETRY, Logs],
            Self::FrozenByOperator => &[RESUME, RETRY, RERUN],
            Self::NotAdoptable => &[RETRY, RERUN],
            Self::DeployFailed => &[RESTART_CLEAN, RERUN, Logs],
            Self::DatasourceFailed => &[ReadConsole, ShowSite, RESTART_CLEAN],
            Self::HardwareSyncFailed => &[RETRY, RESTART_CLEAN, Logs],
            Self::StateDisagrees => &[ShowNode, ADOPT, RERUN],
            Self::UndoFailed => &[RESTART_CLEAN, RERUN, Logs],
            // The record that the run worked on no longer exists; a rerun finds or creates it.
            Self::MaasMachineGone => &[RERUN, Logs],
            Self::SiteUnfit => &[ShowSite, RETRY],
            Self::LoginRefused => &[CheckCluster, SetCredential, UnlockBmc, RETRY, RERUN],
            Self::CredentialMissing => &[SetCredential, RETRY, RERUN],
            Self::CredentialNotAllowed => &[BindCredential, RETRY, RERUN],
            Self::IdentityChanged => &[ForgetIdentity, RETRY, RERUN],
            Self::IdentityUntrusted => &[PinIdentity, RETRY, RERUN],
            Self::NotSupported => &[ListPlans, RETRY],
            Self::ImageUnknown => &[ListImages, AddImage, RERUN],
            Self::SystemAmbiguous => &[SetIdentifiers, RETRY],
            Self::CapabilityMissing | Self::ProviderMissing => &[ShowTarget, RETRY],
            Self::MachineGone => &[Logs, RESUME],
            Self::ForeignEngine => &[RERUN, RESTART_CLEAN, Logs],
            Self::RecordUnreadable => &[RERUN, Logs],
            Self::PartFailed => &[ShowChild, RETRY, ShowChildren],
            Self::DiskUnfit => &[SetRootDisk, RETRY, Logs],
            Self::HostDiskFull | Self::MaasRefused => &[RETRY, Logs],
            Self::InstallFailed => &[RETRY, Logs],
            Self::SystemNotBack => &[SetCredential, RESUME, ADOPT, RETRY],
        }
    }
}

impl Repair {
    /// The words that the page of a fault code and the command have in common.
    pub const fn words(self) -> &'static str {
        match self {
            Self::SetCredential | Self::BindCredential => "farrier credential set",
            Self::UnlockBmc => "farrier bmc unlock",
            Self::TestBmc => "farrier bmc test",
            Self::ForgetIdentity => "farrier trust delete",
            Self::PinIdentity => "farrier trust set",
            Self::ListImages => "farrier image list",
            Self::AddImage => "farrier image create",
            Self::ShowImage => "farrier image get",
            Self::NetbootConfig => "farrier netboot config",
            Self::ListFirmware => "farrier firmware list",
            Self::ShowFirmware => "farrier firmware get",
            Self::DefaultFirmware => "farrier rack maintenance start",
            Self::ListPlans => "farrier plans",
            Self::ShowSite => "farrier site get",
            Self::ShowNode => "farrier node get",
            Self::CheckCluster => "farrier cluster check",
            Self::JoinCluster => "farrier operation start",
            Self::PowerOn => "farrier machine power",
            Self::DrainWithOptions => "farrier enter-maintenance",
            Self::SetRootDisk | Self::SetIdentifiers => "farrier machine update",
            Self::ReadConsole => "farrier machine console-log",
            Self::ShowTarget => "farrier get",
            Self::ShowChild => "farrier why",
            Self::ShowChildren => "farrier rack maintenance status",
            Self::Act(Action::Cancel) => "farrier cancel",
            Self::Act(Action::RetryStep) => "farrier operation retry-step",
            Self::Act(Action::Resume) => "farrier operation resume",
            Self::Act(Action::Adopt) => "farrier operation adopt",
            Self::Act(Action::MarkManual) => "farrier operation mark-manual",
            Self::Restart(RestartMode::Rerun) => "farrier operation rerun",
            Self::Restart(RestartMode::RestartClean) => "farrier operation restart-clean",
            Self::Logs => "farrier logs",
        }
    }

    /// True for the commands that fit any failed run.
    pub const fn is_generic(self) -> bool {
        matches!(self, Self::Act(_) | Self::Restart(_) | Self::Logs)
    }

    /// True if the command changes nothing.
    pub const fn reads(self) -> bool {
        match self {
            Self::TestBmc
            | Self::ListImages
            | Self::ShowImage
            | Self::NetbootConfig
            | Self::ListFirmware
            | Self::ShowFirmware
            | Self::ListPlans
            | Self::ShowSite
            | Self::ShowNode
            | Self::CheckCluster
            | Self::ReadConsole
            | Self::ShowTarget
            | Self::ShowChild
            | Self::ShowChildren
            | Self::Logs => true,
            Self::SetCredential
            | Self::BindCredential
            | Self::UnlockBmc
            | Self::ForgetIdentity
            | Self::PinIdentity
            | Self::AddImage
            | Self::DefaultFirmware
            | Self::JoinCluster
            | Self::PowerOn
            | Self::DrainWithOptions
            | Self::SetRootDisk
            | Self::SetIdentifiers
            | Self::Act(_)
            | Self::Restart(_) => false,
        }
    }

    /// The command with its arguments. None: it does not concern the objects of this incident.
    pub fn command(self, incident: &Incident) -> Option<String> {
        let words = self.words();
        let given = |argument: Option<String>| argument.map(|value| format!("{words} {value}"));
        let facts = incident.fault.facts();
        match self {
            // A system that did not come back may be silent for another reason.
            Self::SetCredential if incident.fault.code == FaultCode::SystemNotBack => {
                given(facts.credential.clone())
            }
            Self::SetCredential => {
                given(facts.credential.clone()).or(Some("farrier credential list".into()))
            }
            Self::BindCredential => given(facts.credential.clone())
                .map(|command| match &facts.binding {
                    Some(options) => format!("{command} {options} …"),
                    None => format!("{command} --for …"),
                })
                .or(Some("farrier credential list".into())),
            Self::UnlockBmc => given(incident.bmc()),
            Self::TestBmc => given(incident.bmc()).map(|command| match &facts.credential {
                Some(credential) => format!("{command} --credential {credential}"),
                None => command,
            }),
            Self::ForgetIdentity => given(facts.peer.clone()).or(Some("farrier trust list".into())),
            Self::PinIdentity => {
                let peer = given(facts.peer.clone()).unwrap_or("farrier trust list".into());
                Some(match &facts.identity {
                    Some(identity) => format!("{peer} {identity}"),
                    None => peer,
                })
            }
            Self::ListImages | Self::ListFirmware | Self::ListPlans => Some(words.into()),
            Self::NetbootConfig => incident.boots_here().then(|| words.into()),
            Self::AddImage => given(incident.image().map(|name| format!("{name} …"))),
            Self::ShowImage => given(incident.image()).or(Some("farrier image list".into())),
            Self::ShowFirmware => {
                given(facts.firmware.clone()).or(Some("farrier firmware list".into()))
            }
            Self::DefaultFirmware => {
                given(incident.run?.spec.target.rack().map(|rack| rack.to_string()))
            }
            Self::ShowSite => {
                let site = incident.node.and_then(|node| node.site.as_ref());
                given(site.map(ToString::to_string)).or(Some("farrier site list".into()))
            }
            Self::ShowNode => given(incident.node.map(|node| node.head.id.clone())),
            // A login that is refused altogether has no rights to check.
            Self::CheckCluster
                if incident.fault.code == FaultCode::LoginRefused
                    && facts.missing_right.is_none() =>
            {
                None
            }
            Self::CheckCluster => given(incident.cluster().filter(|_| !incident.simulated())),
            Self::JoinCluster => incident.join_command(),
            Self::PowerOn => incident.off_machine().map(|id| format!("{words} {id} on")),
            Self::DrainWithOptions => incident.drain_command(),
            Self::SetRootDisk => {
                given(incident.machine_id()).map(|it| it + " --root-disk serial:…")
            }
            Self::SetIdentifiers => {
                given(incident.machine_id()).map(|it| it + " --mac … --serial …")
            }
            Self::ReadConsole => given(incident.machine_id()),
            Self::ShowTarget => Some(incident.run?.spec.target.show_command()),
            Self::ShowChild => given(facts.operation.as_ref().map(ToString::to_string)),
            Self::ShowChildren | Self::Logs => {
                given(incident.run.map(|run| run.spec.id.to_string()))
            }
            Self::Act(action) => incident.run.map(|run| run.command(action.as_str())),
            Self::Restart(mode) => incident.run.map(|run| run.command(mode.as_str())),
        }
    }
}

impl Incident<'_> {
    /// The commands of the fault's repairs, best first.
    pub fn commands(&self) -> Vec<String> {
        self.repairs().map(|(_, command)| command).collect()
    }

    /// The repairs that concern this incident, with their commands.
    pub fn repairs(&self) -> impl Iterator<Item = (Repair, String)> + '_ {
        // Switching on is an operation of its own: after it, the run can only be restarted.
        let listed = self.fault.code.repairs();
        let switches_on =
            listed.contains(&Repair::PowerOn) && Repair::PowerOn.command(self).is_some();
        let must_release = self.must_release();
        let mut repairs: Vec<Repair> = Vec::new();
        for repair in listed.iter().copied() {
            let superseded = (switches_on && matches!(repair, Repair::Act(_)))
                || (must_release && repair == ADOPT);
            let repair = if must_release && repair == RERUN { RESTART_CLEAN } else { repair };
            if !superseded && !repairs.contains(&repair) {
                repairs.push(repair);
            }
        }
        repairs.into_iter().filter_map(|repair| Some((repair, repair.command(self)?)))
    }

    /// True if MAAS holds the machine of an onboarding in Failed deployment. It commissions and
    /// installs such a machine only after a release, which is the part of a clean restart; a rerun
    /// would stop at it, and there is nothing to adopt.
    fn must_release(&self) -> bool {
        let onboards = self.run.is_some_and(|run| run.spec.run_type == RunType::Onboard);
        onboards
            && (self.fault.code == FaultCode::DeployFailed
                || self.node.is_some_and(Node::has_failed_deployment))
    }

    fn machine_id(&self) -> Option<String> {
        let target = self.run.map(|run| &run.spec.target);
        let of_run = target.filter(|target| target.kind == TargetKind::Machine);
        of_run
            .map(|target| target.id.clone())
            .or_else(|| self.machine.map(|machine| machine.id.to_string()))
    }

    /// A simulated machine has no BMC, no network boot and no cluster that could be checked.
    fn simulated(&self) -> bool {
        self.machine.is_some_and(|machine| machine.spec.is_simulated())
    }

    /// The cluster of the failed step, or of the machine.
    pub fn cluster(&self) -> Option<String> {
        let of_step = self.run.and_then(|run| {
            let step = run.progress.current()?;
            run.effect(step)?.cluster().map(ToString::to_string)
        });
        let of_machine = || self.machine.map(|machine| machine.spec.target_cluster_ref.clone());
        of_step.or_else(of_machine).filter(|cluster| !cluster.is_empty())
    }

    /// The message of the fault, with the name of the cluster if the fault is about one.
    pub fn describe(&self) -> String {
        let message = &self.fault.message;
        let about_cluster =
            matches!(self.fault.code, FaultCode::ClusterUnreachable | FaultCode::NotInCluster);
        match self.cluster().filter(|name| about_cluster && !message.contains(name.as_str())) {
            Some(cluster) => format!("cluster {cluster}: {message}"),
            None => message.clone(),
        }
    }

    /// None: a repetition of the operation joins the machine itself, or only its drain looked for
    /// it.
    fn join_command(&self) -> Option<String> {
        let run = self.run?;
        let verifies = matches!(run.effect(run.progress.current()?)?, Effect::Verify { .. });
        let joins = run.spec.steps.iter().any(|step| matches!(step.effect, Effect::Join { .. }));
        let outside = self.machine?.conditions.get(ConditionType::InCustomerCluster)?;
        if !verifies || joins || outside.status || outside.reason != NOT_JOINED {
            return None;
        }
        let (words, kind) = (Repair::JoinCluster.words(), RunType::Join.as_str());
        Some(format!("{words} {} --type {kind}", self.machine_id()?))
    }

    /// The same operation, with the options that evict the pods that stopped its drain.
    fn drain_command(&self) -> Option<String> {
        let run = self.run?;
        let own = run.progress.current().and_then(|step| run.effect(step));
        let Some(Effect::Drain { options, .. }) = own else { return None };
        let options = self.fault.facts().drain.as_ref()?.or(&options);
        let (id, words) = (self.machine_id()?, Repair::DrainWithOptions.words());
        let (kind, plan) = (run.spec.run_type.as_str(), &run.spec.plan_id);
        if *plan == Maintenance::EnterDraining.plan_id() {
            return Some(format!("{words} {id} --drain{}", options.flags()));
        }
        let mut params = without_overrides(run.spec.params.clone());
        params.extend(options.params());
        let params =
            params.iter().map(|(name, value)| format!(" --param {name}={}", shell_word(value)));
        let params: String = params.collect();
        Some(format!("farrier operation start {id} --type {kind} --plan {plan}{params}"))
    }

    /// The address of the BMC.
    fn bmc(&self) -> Option<String> {
        if self.simulated() {
            return None;
        }
        let named = self.machine.map(|machine| machine.spec.bmc_endpoint.clone());
        let named = named.filter(|endpoint| !endpoint.is_empty());
        let peer = self.fault.facts().peer.clone();
        named
            .or_else(|| peer.filter(|peer| peer.starts_with("https:") || peer.starts_with("ipmi:")))
    }

    /// Farrier's own netboot service serves only machines that it switches by their BMC.
    fn boots_here(&self) -> bool {
        self.machine
            .is_none_or(|machine| !machine.spec.bmc_endpoint.is_empty() && !self.simulated())
    }

    /// The image of the incident, or of the failed step.
    fn image(&self) -> Option<String> {
        let of_step = || {
            let run = self.run?;
            run.effect(run.progress.current()?)?.image().map(ToString::to_string)
        };
        self.fault.facts().image.clone().or_else(of_step)
    }

    /// The machine, if it was observed as off.
    fn off_machine(&self) -> Option<String> {
        let machine = self.machine?;
        let known = machine.conditions.get(ConditionType::Reachable)?;
        (!known.status && known.reason == POWERED_OFF).then(|| machine.id.to_string())
    }
}
