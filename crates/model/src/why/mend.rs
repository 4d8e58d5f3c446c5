//! Chooses the commands that resolve a failed run, by its fault code.

use crate::fault::Code;
use crate::run::Run;

/// The best way to resolve a failure.
enum Mend {
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

const fn mend(code: Code) -> Mend {
    match code {
        Code::BmcUnreachable
        | Code::BmcBusy
        | Code::BmcGarbled
        | Code::HostUnreachable
        | Code::ClusterUnreachable
        | Code::DatabaseUnreachable
        | Code::MaasUnreachable
        | Code::MaasBusy
        | Code::EffectFailed
        | Code::ReadBackDiffers
        | Code::CommandFailed
        | Code::NotInCluster
        | Code::EvictionBlocked
        | Code::NetbootSilent
        | Code::DeploySilent
        | Code::ChecksumWrong
        | Code::FirmwareUnfetched
        | Code::FirmwareFailed
        | Code::FabricFailed
        | Code::CommissioningFailed
        | Code::AgentSilent
        | Code::SeedFailed
        | Code::TaskFailed
        | Code::NodeNotClean
        | Code::CandidatesConflict
        | Code::BootDiskMissing
        | Code::PxeInterfaceUnfixable
        | Code::StepTimeout => Mend::TryAgain,
        Code::AnswerLost | Code::AnswerGarbled | Code::TaskLost => Mend::Resume,
        Code::OutcomeUnknown | Code::WorkerPanicked | Code::ProtocolBroken => Mend::Decide,
        Code::FrozenByOperator => Mend::GoOn,
        Code::NotAdoptable => Mend::NotAdoptable,
        Code::DeployFailed | Code::DatasourceFailed => Mend::StartClean,
        Code::HardwareSyncFailed | Code::StateDisagrees => Mend::Adopt,
        // The record that the run worked on no longer exists; a rerun finds or creates it.
        Code::UndoFailed | Code::MaasMachineGone => Mend::Rerun,
        Code::SiteUnfit => Mend::First("farrier site list"),
        Code::LoginRefused | Code::CredentialMissing => Mend::First("farrier credential list"),
        Code::IdentityChanged => Mend::First("farrier trust list"),
        Code::FirmwareUnknown => Mend::FirstThenRerun("farrier firmware list"),
        Code::NotSupported => Mend::FirstThenRerun("farrier plans"),
        Code::ImageUnknown => Mend::FirstThenRerun("farrier image list"),
        Code::IdentityUntrusted | Code::SystemAmbiguous => Mend::Target,
        Code::CapabilityMissing | Code::ProviderMissing | Code::MachineGone => {
            Mend::TargetThenRerun
        }
        Code::ForeignEngine | Code::RecordUnreadable => Mend::FirstThenRerun(""),
        Code::PartFailed => Mend::Parts,
        Code::FirmwareDiffers => Mend::Firmware,
        Code::DiskUnfit => Mend::Disk,
        Code::HostDiskFull | Code::InstallFailed | Code::SystemNotBack | Code::MaasRefused => {
            Mend::LookAndTry
        }
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
    match mend(failure.fault.code) {
        Mend::TryAgain => vec![logs, retry, rerun],
        Mend::Resume => vec![resume, logs],
        Mend::Decide => vec![logs, resume, adopt, retry],
        Mend::GoOn => vec![resume, rerun],
        Mend::NotAdoptable => vec![retry, rerun],
        Mend::StartClean => vec![logs, run.command("restart-clean"), rerun],
        Mend::Adopt => vec![logs, adopt, rerun],
        Mend::Rerun => vec![logs, rerun],
        Mend::First(command) => vec![command.into(), retry],
        Mend::FirstThenRerun("") => vec![rerun, logs],
        Mend::FirstThenRerun(command) => vec![command.into(), rerun],
        Mend::Target => vec![target.get(), retry],
        Mend::TargetThenRerun => vec![target.get(), rerun],
        Mend::Parts => vec![format!("farrier rack maintenance status {id}"), retry, logs],
        Mend::Firmware => vec![logs, adopt, retry],
        Mend::Disk => {
            vec![logs, format!("farrier machine update {target} --root-disk serial:…"), retry]
        }
        Mend::LookAndTry => vec![logs, retry],
    }
}
