//! Deployments: a machine boots over the network and gets an image.
//!
//! A deployment belongs to one attempt of one step and has that attempt's effect key. While it is
//! requested, the machine is told by its MAC address what to boot, and gets a token. The token is
//! valid for one claim; the claiming deploy environment chooses a session. A repeated claim with
//! the same session gets the same answer, any other is refused. After the claim the session
//! authenticates every call.

use crate::effect::Key;
use crate::fault::{Code, Fault};
use crate::id::MachineId;
use crate::image::{Body, Image};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    pub key: Key,
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
    pub stage: Stage,
    /// When the machine last asked what to boot.
    pub asked_at: Option<Timestamp>,
    /// The checksum of the session that claimed it.
    pub session: Option<String>,
    /// When the claiming deploy environment last sent a message.
    pub heard_at: Option<Timestamp>,
    pub done: u64,
    pub total: u64,
    pub said: String,
    /// The SSH host keys of the new system.
    pub host_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The machine is still being powered off: the system that still runs on it must get nothing.
    Prepared,
    /// The machine is told what to boot.
    Wanted,
    Claimed,
    Writing,
    Installing,
    Installed,
    /// The machine may boot the installed system.
    Released,
    Failed(Trouble),
    /// The new system has answered.
    Finished,
    /// The deployment is no longer requested.
    Closed,
}

/// Why the deploy environment failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    ChecksumWrong,
    DiskTooSmall,
    DiskMissing,
    DiskAmbiguous,
    ImageBroken,
    InstallFailed,
}

/// A claim by a deploy environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub macs: Vec<String>,
    /// The checksum of the session it chose.
    pub session: String,
}

/// A progress report of the deploy environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub step: ReportStep,
    pub done: u64,
    pub total: u64,
    pub said: String,
    pub host_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportStep {
    Writing,
    Installing,
    Installed,
    Failed(Trouble),
}

/// A deployment command of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steer {
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

/// The next action of the deploy environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    GoOn,
    Reboot,
    Stop,
}

/// Why a claim or a session was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    TokenUnknown,
    TokenUsed,
    TokenExpired,
    MacRefused,
    SessionUnknown,
}

impl Denied {
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
pub const HEARD_EVERY: Duration = Duration::from_secs(3);

impl Deployment {
    /// A new deployment in stage `Prepared`. Its token is valid for the duration `token`.
    pub fn new(
        key: Key,
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
            stage: Stage::Prepared,
            asked_at: None,
            session: None,
            heard_at: None,
            done: 0,
            total: 0,
            said: String::new(),
            host_keys: Vec::new(),
        }
    }

    /// True if anything may still happen in this deployment.
    pub const fn open(&self) -> bool {
        !matches!(self.stage, Stage::Finished | Stage::Closed)
    }

    /// True if the machine is told what to boot.
    pub fn boots(&self, now: Timestamp) -> bool {
        self.stage == Stage::Wanted && now < self.token_until
    }

    /// True if the bearer of the token may download its files. A BMC may copy an ISO as soon as it
    /// is attached, while the machine is still on.
    pub fn gives_files(&self, now: Timestamp) -> bool {
        let early = matches!(self.image.body, Body::Iso { .. }) && self.stage == Stage::Prepared;
        self.boots(now) || (early && now < self.token_until)
    }

    /// Accepts a claim by the bearer of the token.
    pub fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<(), Denied> {
        if self.session.as_ref() == Some(&claim.session) {
            return if self.open() { Ok(()) } else { Err(Denied::TokenUsed) };
        }
        if self.stage == Stage::Prepared {
            return Err(Denied::TokenUnknown);
        }
        if self.session.is_some() || self.stage != Stage::Wanted {
            return Err(Denied::TokenUsed);
        }
        if now >= self.token_until {
            return Err(Denied::TokenExpired);
        }
        if !claim.macs.iter().any(|mac| self.macs.contains(mac)) {
            return Err(Denied::MacRefused);
        }
        self.stage = Stage::Claimed;
        self.session = Some(claim.session.clone());
        self.heard_at = Some(now);
        Ok(())
    }

    /// Records a progress report. The flag says whether the deployment changed and must be stored.
    pub fn hear(&mut self, report: &Report, now: Timestamp) -> (Then, bool) {
        let then = match self.stage {
            Stage::Released => return (Then::Reboot, false),
            Stage::Prepared | Stage::Wanted | Stage::Finished | Stage::Closed => {
                return (Then::Stop, false);
            }
            Stage::Failed(_) => return (Then::GoOn, false),
            Stage::Claimed | Stage::Writing | Stage::Installing | Stage::Installed => Then::GoOn,
        };
        let before = self.stage;
        self.stage = match report.step {
            // A late or repeated report never moves the stage back.
            ReportStep::Writing if before == Stage::Claimed => Stage::Writing,
            ReportStep::Installing if matches!(before, Stage::Claimed | Stage::Writing) => {
                Stage::Installing
            }
            ReportStep::Writing | ReportStep::Installing => before,
            ReportStep::Installed => Stage::Installed,
            ReportStep::Failed(trouble) => Stage::Failed(trouble),
        };
        let quiet = self.heard_at.is_some_and(|heard| now.since(heard) < HEARD_EVERY);
        if before == self.stage && quiet {
            return (then, false);
        }
        self.heard_at = Some(now);
        self.done = report.done;
        self.total = report.total;
        self.said.clone_from(&report.said);
        if !report.host_keys.is_empty() {
            self.host_keys.clone_from(&report.host_keys);
        }
        (then, true)
    }

    /// Applies a command of the provider. False when nothing changed.
    pub fn steer(&mut self, to: Steer) -> bool {
        let next = match to {
            Steer::Arm if self.stage == Stage::Prepared => Stage::Wanted,
            Steer::Release if self.stage == Stage::Installed => Stage::Released,
            Steer::Finish if self.open() => Stage::Finished,
            Steer::Close if self.open() => Stage::Closed,
            Steer::Stop if self.open() && self.stage != Stage::Released => Stage::Closed,
            Steer::Arm | Steer::Release | Steer::Finish | Steer::Close | Steer::Stop => {
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
pub fn stamp(image: &Image, key: &Key) -> String {
    format!("{}by {key}\n", image_lines(image))
}

/// The lines of a stamp that identify the image, without the effect key.
pub fn image_lines(image: &Image) -> String {
    let sums: Vec<_> = image.body.artifacts().iter().map(|one| one.sha256.as_str()).collect();
    format!("image {}\nsha256 {}\n", image.name, sums.join(" "))
}

impl Trouble {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ChecksumWrong => "checksum-wrong",
            Self::DiskTooSmall => "disk-too-small",
            Self::DiskMissing => "disk-missing",
            Self::DiskAmbiguous => "disk-ambiguous",
            Self::ImageBroken => "image-broken",
            Self::InstallFailed => "install-failed",
        }
    }

    pub fn fault(self, said: &str) -> Fault {
        let code = match self {
            Self::ChecksumWrong => Code::ChecksumWrong,
            Self::DiskTooSmall | Self::DiskMissing | Self::DiskAmbiguous => Code::DiskUnfit,
            Self::ImageBroken | Self::InstallFailed => Code::InstallFailed,
        };
        Fault::new(code, said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunId;
    use crate::image::{Artifact, DiskFormat};

    const MAC: &str = "52:54:00:00:00:01";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn wanted() -> Deployment {
        let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
        let body = Body::Disk { format: DiskFormat::Raw, file };
        let image = Image { name: "debian-12".into(), body, created_at: at(0) };
        let (key, machine) =
            (Key::new(&RunId::trusted("op-1"), "repave-os", 1), MachineId::trusted("m-1"));
        let one = Deployment::new(key, machine, image, at(0), Duration::from_secs(100));
        Deployment { macs: vec![MAC.into()], stage: Stage::Wanted, ..one }
    }

    fn claim(session: &str, mac: &str) -> Claim {
        Claim { macs: vec!["52:54:00:00:00:99".into(), mac.into()], session: session.into() }
    }

    fn report(step: ReportStep, done: u64) -> Report {
        let said = format!("{step:?}");
        Report { step, done, total: 200, said, host_keys: Vec::new() }
    }

    #[test]
    fn a_token_is_good_once_in_time_and_for_its_machine() {
        let mut taken = wanted();
        taken.claim(&claim("a", MAC), at(1)).unwrap();
        let closed = Deployment { stage: Stage::Closed, ..wanted() };
        let early = Deployment { stage: Stage::Prepared, ..wanted() };
        assert!(!early.boots(at(1)), "what runs before it was switched off is told nothing");
        assert!(!early.gives_files(at(1)) && wanted().gives_files(at(1)));
        let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
        let disc = Image { body: Body::Iso { file }, ..early.image.clone() };
        let disc = Deployment { image: disc, ..early.clone() };
        assert!(disc.gives_files(at(1)) && !disc.boots(at(1)), "a disc is put in before");
        assert!(!disc.gives_files(at(100)));
        let ended = Deployment { stage: Stage::Finished, ..taken.clone() };
        let table = [
            ("first", wanted(), claim("a", MAC), 99, Ok(())),
            ("late", wanted(), claim("a", MAC), 100, Err(Denied::TokenExpired)),
            (
                "other machine",
                wanted(),
                claim("a", "52:54:00:00:00:02"),
                1,
                Err(Denied::MacRefused),
            ),
            ("twice", taken.clone(), claim("b", MAC), 2, Err(Denied::TokenUsed)),
            ("the answer was lost", taken.clone(), claim("a", MAC), 200, Ok(())),
            ("too early", early, claim("a", MAC), 1, Err(Denied::TokenUnknown)),
            ("not wanted any more", closed, claim("a", MAC), 1, Err(Denied::TokenUsed)),
            ("ended", ended, claim("a", MAC), 3, Err(Denied::TokenUsed)),
        ];
        for (case, mut deployment, claim, now, expected) in table {
            assert_eq!(deployment.claim(&claim, at(now)), expected, "{case}");
        }
    }

    #[test]
    fn it_goes_forward_only() {
        let mut one = wanted();
        one.claim(&claim("a", MAC), at(1)).unwrap();
        let told = |one: &mut Deployment, step, done, now| {
            let (then, write) = one.hear(&report(step, done), at(now));
            (one.stage, then, write)
        };
        use ReportStep as R;
        assert_eq!(told(&mut one, R::Writing, 1, 2), (Stage::Writing, Then::GoOn, true));
        assert_eq!(told(&mut one, R::Writing, 2, 3), (Stage::Writing, Then::GoOn, false));
        assert_eq!(told(&mut one, R::Writing, 100, 6), (Stage::Writing, Then::GoOn, true));
        assert_eq!(one.percent(), 50);
        assert!(!one.steer(Steer::Release), "there is nothing to boot");
        assert_eq!(told(&mut one, R::Installed, 200, 7), (Stage::Installed, Then::GoOn, true));
        assert_eq!(told(&mut one, R::Writing, 3, 20), (Stage::Installed, Then::GoOn, true));
        assert!(one.steer(Steer::Release) && !one.steer(Steer::Release));
        assert_eq!(told(&mut one, R::Installed, 200, 30), (Stage::Released, Then::Reboot, false));
        assert!(!one.steer(Steer::Stop), "it boots the new system");
        assert!(one.steer(Steer::Close) && !one.steer(Steer::Finish));
        assert_eq!(told(&mut one, R::Writing, 200, 31), (Stage::Closed, Then::Stop, false));
    }

    #[test]
    fn what_went_wrong_stays_wrong() {
        let mut one = wanted();
        one.claim(&claim("a", MAC), at(1)).unwrap();
        let failed = ReportStep::Failed(Trouble::DiskTooSmall);
        assert_eq!(one.hear(&report(failed, 0), at(2)), (Then::GoOn, true));
        assert_eq!(one.hear(&report(ReportStep::Installed, 0), at(9)), (Then::GoOn, false));
        assert_eq!(one.stage, Stage::Failed(Trouble::DiskTooSmall));
    }
}
