//! What fits a fault: which way out of it is best, and what to type for that.

use crate::fault::Code;
use crate::run::Run;

/// The ways out of a failure.
enum Mend {
    /// The cause may have gone.
    TryAgain,
    /// What became of it must be found out.
    Resume,
    /// A person decides whether it happened.
    Decide,
    /// What stopped it was a person.
    GoOn,
    NotAdoptable,
    /// What is there is no good beginning.
    StartClean,
    /// What is there may be as good.
    Adopt,
    /// From the top, adopting what holds.
    Rerun,
    /// Something of the target or of Farrier's own must be put right first: look there.
    First(&'static str),
    /// The same, and then from the top.
    FirstThenRerun(&'static str),
    Target,
    TargetThenRerun,
    /// What its parts say names the device; those that are done stay done.
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
        // The record that the run was working on is not there any more: from the top, it is found or made again.
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

/// What to type about a failed run, the best first.
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
