//! Deployments: a machine boots over the network and gets an image.
//!
//! A deployment belongs to one attempt of one step and has that attempt's effect key. While it is
//! requested, the machine is told by its MAC address what to boot, and gets a token. The token is
//! valid for one claim; the claiming deploy environment chooses a session. A repeated claim with
//! the same session gets the same answer, any other is refused. After the claim the session
//! authenticates every call.

use crate::effect::EffectKey;
use crate::fault::{Fault, FaultCode};
use crate::id::MachineId;
use crate::image::{Image, ImageContent};
use crate::text::same_checksum;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;
pub use wire::deploy::{DeploymentFailure, DeploymentInstruction};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    pub key: EffectKey,
    pub machine_id: MachineId,
    pub macs: Vec<String>,
    pub image: Image,
    pub hostname: String,
    pub user: String,
    pub authorized_keys: Vec<String>,
    /// The target disk; empty means the only disk.
    pub root_disk: String,
    pub opened_at: Timestamp,
    pub token_until: Timestamp,
    pub stage: DeploymentStage,
    /// The time when the machine last asked what to boot.
    #[serde(rename = "asked_at")]
    pub boot_requested_at: Option<Timestamp>,
    /// The checksum of the session that claimed it.
    pub session: Option<String>,
    /// The time when the claiming deploy environment last sent a message.
    #[serde(rename = "heard_at")]
    pub last_report_at: Option<Timestamp>,
    pub done: u64,
    pub total: u64,
    #[serde(rename = "said")]
    pub message: String,
    /// The SSH host keys of the new system.
    pub host_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentStage {
    /// The machine is still being powered off: the system that still runs on it must get nothing.
    Prepared,
    /// The machine is told what to boot.
    #[serde(rename = "wanted")]
    Requested,
    Claimed,
    Writing,
    Installing,
    Installed,
    /// The machine may boot the installed system.
    Released,
    Failed(DeploymentFailure),
    /// The new system has answered.
    Finished,
    /// The deployment is no longer requested.
    Closed,
}

/// A claim by a deploy environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentClaim {
    pub macs: Vec<String>,
    /// The checksum of the session it chose.
    pub session: String,
}

/// A progress report of the deploy environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentReport {
    pub step: ReportStep,
    pub done: u64,
    pub total: u64,
    pub message: String,
    pub host_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportStep {
    Writing,
    Installing,
    Installed,
    Failed(DeploymentFailure),
}

/// A deployment command of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentCommand {
    /// The machine is off: from now on a booting machine is told what to boot.
    Arm,
    /// The machine may boot the installed system.
    Release,
    /// The new system has answered.
    Finish,
    /// Nothing more may happen in this deployment.
    Close,
    /// Like `Close`, unless the machine was released already: then it boots the new system.
    Stop,
}

/// The reason why a claim or a session was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimRefusal {
    TokenUnknown,
    TokenUsed,
    TokenExpired,
    MacRefused,
    SessionUnknown,
}

impl ClaimRefusal {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenUnknown => "token-unknown",
            Self::TokenUsed => "token-used",
            Self::TokenExpired => "token-expired",
            Self::MacRefused => "mac-refused",
            Self::SessionUnknown => "session-unknown",
        }
    }

    pub const fn said(self) -> &'static str {
        match self {
            Self::TokenUnknown => "no operation has given out this token",
            Self::TokenUsed => "this token was used before; a token is good once",
            Self::TokenExpired => "this token has expired; boot the machine again with a new run",
            Self::MacRefused => "this token was given out for another machine",
            Self::SessionUnknown => "no operation is under way for this session",
        }
    }
}

/// Progress reports without a change of stage are stored at most this often.
pub const REPORT_STORE_INTERVAL: Duration = Duration::from_secs(3);

impl Deployment {
    /// A new deployment in stage `Prepared`. Its token is valid for the duration `token`.
    pub fn new(
        key: EffectKey,
        machine_id: MachineId,
        image: Image,
        opened_at: Timestamp,
        token: Duration,
    ) -> Self {
        Self {
            key,
            hostname: machine_id.as_str().to_string(),
            machine_id,
            macs: Vec::new(),
            image,
            user: String::new(),
            authorized_keys: Vec::new(),
            root_disk: String::new(),
            opened_at,
            token_until: opened_at + token,
            stage: DeploymentStage::Prepared,
            boot_requested_at: None,
            session: None,
            last_report_at: None,
            done: 0,
            total: 0,
            message: String::new(),
            host_keys: Vec::new(),
        }
    }

    /// True if anything may still happen in this deployment.
    pub const fn open(&self) -> bool {
        !matches!(self.stage, DeploymentStage::Finished | DeploymentStage::Closed)
    }

    /// True if the machine is told what to boot.
    pub fn offers_boot(&self, now: Timestamp) -> bool {
        self.stage == DeploymentStage::Requested && now < self.token_until
    }

    /// True if the bearer of the token may download its files. A BMC may copy an ISO as soon as it
    /// is attached, while the machine is still on.
    pub fn offers_files(&self, now: Timestamp) -> bool {
        let early = matches!(self.image.body, ImageContent::Iso { .. })
            && self.stage == DeploymentStage::Prepared;
        self.offers_boot(now) || (early && now < self.token_until)
    }

    /// Accepts a claim by the bearer of the token.
    pub fn claim(&mut self, claim: &DeploymentClaim, now: Timestamp) -> Result<(), ClaimRefusal> {
        if self.session.as_ref().is_some_and(|one| same_checksum(one, &claim.session)) {
            return if self.open() { Ok(()) } else { Err(ClaimRefusal::TokenUsed) };
        }
        if self.stage == DeploymentStage::Prepared {
            return Err(ClaimRefusal::TokenUnknown);
        }
        if self.session.is_some() || self.stage != DeploymentStage::Requested {
            return Err(ClaimRefusal::TokenUsed);
        }
        if now >= self.token_until {
            return Err(ClaimRefusal::TokenExpired);
        }
        if !claim.macs.iter().any(|mac| self.macs.contains(mac)) {
            return Err(ClaimRefusal::MacRefused);
        }
        self.stage = DeploymentStage::Claimed;
        self.session = Some(claim.session.clone());
        self.last_report_at = Some(now);
        Ok(())
    }

    /// Records a progress report. The flag says whether the deployment changed and must be stored.
    pub fn record_report(
        &mut self,
        report: &DeploymentReport,
        now: Timestamp,
    ) -> (DeploymentInstruction, bool) {
        let then = match self.stage {
            DeploymentStage::Released => return (DeploymentInstruction::Reboot, false),
            DeploymentStage::Prepared
            | DeploymentStage::Requested
            | DeploymentStage::Finished
            | DeploymentStage::Closed => {
                return (DeploymentInstruction::Stop, false);
            }
            DeploymentStage::Failed(_) => return (DeploymentInstruction::Continue, false),
            DeploymentStage::Claimed
            | DeploymentStage::Writing
            | DeploymentStage::Installing
            | DeploymentStage::Installed => DeploymentInstruction::Continue,
        };
        let before = self.stage;
        self.stage = match report.step {
            // A late or repeated report never moves the stage back.
            ReportStep::Writing if before == DeploymentStage::Claimed => DeploymentStage::Writing,
            ReportStep::Installing
                if matches!(before, DeploymentStage::Claimed | DeploymentStage::Writing) =>
            {
                DeploymentStage::Installing
            }
            ReportStep::Writing | ReportStep::Installing => before,
            ReportStep::Installed => DeploymentStage::Installed,
            ReportStep::Failed(failure) => DeploymentStage::Failed(failure),
        };
        let quiet = self
            .last_report_at
            .is_some_and(|heartbeat| now.since(heartbeat) < REPORT_STORE_INTERVAL);
        if before == self.stage && quiet {
            return (then, false);
        }
        self.last_report_at = Some(now);
        self.done = report.done;
        self.total = report.total;
        self.message.clone_from(&report.message);
        if !report.host_keys.is_empty() {
            self.host_keys.clone_from(&report.host_keys);
        }
        (then, true)
    }

    /// Applies a command of the provider. False when nothing changed.
    pub fn apply_command(&mut self, to: DeploymentCommand) -> bool {
        let next = match to {
            DeploymentCommand::Arm if self.stage == DeploymentStage::Prepared => {
                DeploymentStage::Requested
            }
            DeploymentCommand::Release if self.stage == DeploymentStage::Installed => {
                DeploymentStage::Released
            }
            DeploymentCommand::Finish if self.open() => DeploymentStage::Finished,
            DeploymentCommand::Close if self.open() => DeploymentStage::Closed,
            DeploymentCommand::Stop if self.open() && self.stage != DeploymentStage::Released => {
                DeploymentStage::Closed
            }
            DeploymentCommand::Arm
            | DeploymentCommand::Release
            | DeploymentCommand::Finish
            | DeploymentCommand::Close
            | DeploymentCommand::Stop => {
                return false;
            }
        };
        self.stage = next;
        true
    }

    /// The stamp that the new system returns when it is asked for its image.
    pub fn stamp(&self) -> String {
        stamp(&self.image, &self.key)
    }

    /// The progress in percent, 0 to 100.
    pub fn percent(&self) -> u64 {
        match self.total {
            0 => 0,
            total => (u128::from(self.done.min(total)) * 100 / u128::from(total)) as u64,
        }
    }
}

/// The image, its checksums and the effect key, one per line.
pub fn stamp(image: &Image, key: &EffectKey) -> String {
    format!("{}by {key}\n", image_lines(image))
}

/// The lines of a stamp that identify the image, without the effect key.
pub fn image_lines(image: &Image) -> String {
    let sums: Vec<_> = image.body.artifacts().iter().map(|one| one.sha256.as_str()).collect();
    format!("image {}\nsha256 {}\n", image.name, sums.join(" "))
}

/// The fault of a step whose deploy environment failed.
pub fn failure_fault(failure: DeploymentFailure, message: &str) -> Fault {
    let code = match failure {
        DeploymentFailure::ChecksumWrong => FaultCode::ChecksumWrong,
        DeploymentFailure::DiskTooSmall
        | DeploymentFailure::DiskMissing
        | DeploymentFailure::DiskAmbiguous => FaultCode::DiskUnfit,
        DeploymentFailure::ImageBroken | DeploymentFailure::InstallFailed => {
            FaultCode::InstallFailed
        }
    };
    Fault::new(code, message)
}
