//! Tests of the module `status` alone.

use agent::failure::Failure;
use agent::status::*;
use agent::timing::Timing;
use std::time::Duration;
use wire::deploy::DeploymentFailure;
use wire::deploy::Stage;

#[test]
fn no_change_of_stage_is_skipped_and_then_the_newest_is_repeated() {
    let status = DeployStatus::default();
    let timing = Timing::for_tests();
    status.start_writing(10, "writing".into());
    status.progress(10);
    status.start_installing("installing".into());
    status.set_installed("installed".into(), vec!["key".into()]);
    let sent: Vec<(Stage, u64)> = (0..5)
        .filter_map(|_| status.next_report(&timing))
        .map(|report| (report.stage, report.done))
        .collect();
    let expected = [
        (Stage::Writing, 0),
        (Stage::Installing, 10),
        (Stage::Installed, 10),
        (Stage::Installed, 10),
        (Stage::Installed, 10),
    ];
    assert_eq!(sent, expected);
}

#[test]
fn nothing_is_reported_after_the_end() {
    let status = DeployStatus::default();
    status.set_failed(Failure::new(DeploymentFailure::DiskMissing, "none"));
    status.finish_with(FinalAction::Reboot);
    status.finish_with(FinalAction::PowerOff);
    assert_eq!(status.wait_for_final_action(), FinalAction::Reboot);
    assert_eq!(status.next_report(&Timing::for_tests()), None);
    status.pause(Duration::from_secs(3_600));
}
