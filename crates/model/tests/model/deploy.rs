//! Deployments: claims by token, progress reports, final stages.

use model::deploy::{
    ClaimRefusal, Deployment, DeploymentClaim, DeploymentCommand, DeploymentFailure,
    DeploymentInstruction, DeploymentReport, DeploymentStage, ReportStep,
};
use model::effect::EffectKey;
use model::id::{MachineId, RunId};
use model::image::{Artifact, DiskFormat, Image, ImageContent};
use model::time::Timestamp;
use std::time::Duration;

const MAC: &str = "52:54:00:00:00:01";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn requested_deployment() -> Deployment {
    let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
    let body = ImageContent::Disk { format: DiskFormat::Raw, file };
    let image = Image { name: "debian-12".into(), body, created_at: at(0) };
    let (key, machine) =
        (EffectKey::new(&RunId::trusted("op-1"), "repave-os", 1), MachineId::trusted("m-1"));
    let one = Deployment::new(key, machine, image, at(0), Duration::from_secs(100));
    Deployment { macs: vec![MAC.into()], stage: DeploymentStage::Requested, ..one }
}

fn claim(session: &str, mac: &str) -> DeploymentClaim {
    DeploymentClaim { macs: vec!["52:54:00:00:00:99".into(), mac.into()], session: session.into() }
}

fn report(step: ReportStep, done: u64) -> DeploymentReport {
    let message = format!("{step:?}");
    DeploymentReport { step, done, total: 200, message, host_keys: Vec::new() }
}

#[test]
fn a_token_is_good_once_in_time_and_for_its_machine() {
    let mut taken = requested_deployment();
    taken.claim(&claim("a", MAC), at(1)).unwrap();
    let closed = Deployment { stage: DeploymentStage::Closed, ..requested_deployment() };
    let early = Deployment { stage: DeploymentStage::Prepared, ..requested_deployment() };
    assert!(!early.offers_boot(at(1)), "what runs before it was switched off is told nothing");
    assert!(!early.offers_files(at(1)) && requested_deployment().offers_files(at(1)));
    let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
    let disc = Image { body: ImageContent::Iso { file }, ..early.image.clone() };
    let disc = Deployment { image: disc, ..early.clone() };
    assert!(disc.offers_files(at(1)) && !disc.offers_boot(at(1)), "a disc is put in before");
    assert!(!disc.offers_files(at(100)));
    let ended = Deployment { stage: DeploymentStage::Finished, ..taken.clone() };
    let table = [
        ("first", requested_deployment(), claim("a", MAC), 99, Ok(())),
        ("late", requested_deployment(), claim("a", MAC), 100, Err(ClaimRefusal::TokenExpired)),
        (
            "other machine",
            requested_deployment(),
            claim("a", "52:54:00:00:00:02"),
            1,
            Err(ClaimRefusal::MacRefused),
        ),
        ("twice", taken.clone(), claim("b", MAC), 2, Err(ClaimRefusal::TokenUsed)),
        ("the answer was lost", taken.clone(), claim("a", MAC), 200, Ok(())),
        ("too early", early, claim("a", MAC), 1, Err(ClaimRefusal::TokenUnknown)),
        ("not wanted any more", closed, claim("a", MAC), 1, Err(ClaimRefusal::TokenUsed)),
        ("ended", ended, claim("a", MAC), 3, Err(ClaimRefusal::TokenUsed)),
    ];
    for (case, mut deployment, claim, now, expected) in table {
        assert_eq!(deployment.claim(&claim, at(now)), expected, "{case}");
    }
}

#[test]
fn it_goes_forward_only() {
    let mut one = requested_deployment();
    one.claim(&claim("a", MAC), at(1)).unwrap();
    let reported = |one: &mut Deployment, step, done, now| {
        let (then, write) = one.record_report(&report(step, done), at(now));
        (one.stage, then, write)
    };
    use ReportStep as R;
    assert_eq!(
        reported(&mut one, R::Writing, 1, 2),
        (DeploymentStage::Writing, DeploymentInstruction::Continue, true)
    );
    assert_eq!(
        reported(&mut one, R::Writing, 2, 3),
        (DeploymentStage::Writing, DeploymentInstruction::Continue, false)
    );
    assert_eq!(
        reported(&mut one, R::Writing, 100, 6),
        (DeploymentStage::Writing, DeploymentInstruction::Continue, true)
    );
    assert_eq!(one.percent(), 50);
    assert!(!one.apply_command(DeploymentCommand::Release), "there is nothing to boot");
    assert_eq!(
        reported(&mut one, R::Installed, 200, 7),
        (DeploymentStage::Installed, DeploymentInstruction::Continue, true)
    );
    assert_eq!(
        reported(&mut one, R::Writing, 3, 20),
        (DeploymentStage::Installed, DeploymentInstruction::Continue, true)
    );
    assert!(
        one.apply_command(DeploymentCommand::Release)
            && !one.apply_command(DeploymentCommand::Release)
    );
    assert_eq!(
        reported(&mut one, R::Installed, 200, 30),
        (DeploymentStage::Released, DeploymentInstruction::Reboot, false)
    );
    assert!(!one.apply_command(DeploymentCommand::Stop), "it boots the new system");
    assert!(
        one.apply_command(DeploymentCommand::Close)
            && !one.apply_command(DeploymentCommand::Finish)
    );
    assert_eq!(
        reported(&mut one, R::Writing, 200, 31),
        (DeploymentStage::Closed, DeploymentInstruction::Stop, false)
    );
}

#[test]
fn what_went_wrong_stays_wrong() {
    let mut one = requested_deployment();
    one.claim(&claim("a", MAC), at(1)).unwrap();
    let failed = ReportStep::Failed(DeploymentFailure::DiskTooSmall);
    assert_eq!(
        one.record_report(&report(failed, 0), at(2)),
        (DeploymentInstruction::Continue, true)
    );
    assert_eq!(
        one.record_report(&report(ReportStep::Installed, 0), at(9)),
        (DeploymentInstruction::Continue, false)
    );
    assert_eq!(one.stage, DeploymentStage::Failed(DeploymentFailure::DiskTooSmall));
}
