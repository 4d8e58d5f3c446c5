//! Chooses the commands that resolve a failed run, by its fault code.

use crate::fault::FaultCode;
use crate::run::Run;

/// The best way to resolve a failure.
enum Remedy {
    /// Retry: the cause may be gone.
    TryAgain,
    /// Resume: the status of the last attempt must be read.
    Resume,
    /// The operator decides whether the effect happened.
    Decide,
    /// Resume: an operator stopped the run.
    GoOn,
    NotAdoptable,
    /// Restart clean: the current state is no good starting point.
    StartClean,
    /// Adopt: the current state may be good enough.
    Adopt,
    /// Rerun from the first step, skipping what holds.
    Rerun,
    /// Something else must be corrected first; the command shows it. Then retry.
    First(&'static str),
    /// Like `First`, then rerun.
    FirstThenRerun(&'static str),
    Target,
    TargetThenRerun,
    /// The status of the child runs names the device; completed child runs stay completed.
    Parts,
    Firmware,
    Disk,
    LookAndTry,
}

const fn choose_remedy(code: FaultCode) -> Remedy {
    match code {
        FaultCode::BmcUnreachable
        | FaultCode::BmcBusy
        | FaultCode::BmcGarbled
        | FaultCode::HostUnreachable
        | FaultCode::ClusterUnreachable
        | FaultCode::DatabaseUnreachable
        | FaultCode::MaasUnreachable
        | FaultCode::MaasBusy
        | FaultCode::EffectFailed
        | FaultCode::ReadBackDiffers
        | FaultCode::CommandFailed
        | FaultCode::NotInCluster
        | FaultCode::EvictionBlocked
        | FaultCode::NetbootSilent
        | FaultCode::DeploySilent
        | FaultCode::ChecksumWrong
        | FaultCode::FirmwareUnfetched
        | FaultCode::FirmwareFailed
        | FaultCode::FabricFailed
        | FaultCode::CommissioningFailed
        | FaultCode::AgentSilent
        | FaultCode::SeedFailed
        | FaultCode::TaskFailed
        | FaultCode::NodeNotClean
        | FaultCode::CandidatesConflict
        | FaultCode::BootDiskMissing
        | FaultCode::PxeInterfaceUnfixable
        | FaultCode::StepTimeout => Remedy::TryAgain,
        FaultCode::AnswerLost | FaultCode::AnswerGarbled | FaultCode::TaskLost => Remedy::Resume,
        FaultCode::OutcomeUnknown | FaultCode::WorkerPanicked | FaultCode::ProtocolBroken => {
            Remedy::Decide
        }
        FaultCode::FrozenByOperator => Remedy::GoOn,
        FaultCode::NotAdoptable => Remedy::NotAdoptable,
        FaultCode::DeployFailed | FaultCode::DatasourceFailed => Remedy::StartClean,
        FaultCode::HardwareSyncFailed | FaultCode::StateDisagrees => Remedy::Adopt,
        // The record that the run worked on no longer exists; a rerun finds or creates it.
        FaultCode::UndoFailed | FaultCode::MaasMachineGone => Remedy::Rerun,
        FaultCode::SiteUnfit => Remedy::First("farrier site list"),
        FaultCode::LoginRefused | FaultCode::CredentialMissing => {
            Remedy::First("farrier credential list")
        }
        FaultCode::IdentityChanged => Remedy::First("farrier trust list"),
        FaultCode::FirmwareUnknown => Remedy::FirstThenRerun("farrier firmware list"),
        FaultCode::NotSupported => Remedy::FirstThenRerun("farrier plans"),
        FaultCode::ImageUnknown => Remedy::FirstThenRerun("farrier image list"),
        FaultCode::IdentityUntrusted | FaultCode::SystemAmbiguous => Remedy::Target,
        FaultCode::CapabilityMissing | FaultCode::ProviderMissing | FaultCode::MachineGone => {
            Remedy::TargetThenRerun
        }
        FaultCode::ForeignEngine | FaultCode::RecordUnreadable => Remedy::FirstThenRerun(""),
        FaultCode::PartFailed => Remedy::Parts,
        FaultCode::FirmwareDiffers => Remedy::Firmware,
        FaultCode::DiskUnfit => Remedy::Disk,
        FaultCode::HostDiskFull
        | FaultCode::InstallFailed
        | FaultCode::SystemNotBack
        | FaultCode::MaasRefused => Remedy::LookAndTry,
    }
}

/// The commands for a failed run, best first.
pub(super) fn own_commands(run: &Run) -> Vec<String> {
    let (id, target) = (&run.spec.id, &run.spec.target);
    let [retry, resume, adopt, rerun] =
        ["retry-step", "resume", "adopt", "rerun"].map(|action| run.command(action));
    let logs = format!("farrier logs {id}");
    let Some(failure) = &run.progress.failure else {
        return vec![resume, logs];
    };
    match choose_remedy(failure.fault.code) {
        Remedy::TryAgain => vec![logs, retry, rerun],
        Remedy::Resume => vec![resume, logs],
        Remedy::Decide => vec![logs, resume, adopt, retry],
        Remedy::GoOn => vec![resume, rerun],
        Remedy::NotAdoptable => vec![retry, rerun],
        Remedy::StartClean => vec![logs, run.command("restart-clean"), rerun],
        Remedy::Adopt => vec![logs, adopt, rerun],
        Remedy::Rerun => vec![logs, rerun],
        Remedy::First(command) => vec![command.into(), retry],
        Remedy::FirstThenRerun("") => vec![rerun, logs],
        Remedy::FirstThenRerun(command) => vec![command.into(), rerun],
        Remedy::Target => vec![target.show_command(), retry],
        Remedy::TargetThenRerun => vec![target.show_command(), rerun],
        Remedy::Parts => vec![format!("farrier rack maintenance status {id}"), retry, logs],
        Remedy::Firmware => vec![logs, adopt, retry],
        Remedy::Disk => {
            vec![logs, format!("farrier machine update {target} --root-disk serial:…"), retry]
        }
        Remedy::LookAndTry => vec![logs, retry],
    }
}
