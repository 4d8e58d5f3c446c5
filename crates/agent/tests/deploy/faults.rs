//! Faults of the network and of the server that must not change the result.

use crate::environment::{MIB, TestMachine, image, successful_script, wait_until};
use crate::server::{Fault, Server};
use agent::FinalAction;
use proptest::prelude::*;
use std::thread;
use std::time::Duration;

#[test]
fn claims_are_retried_with_the_same_session() {
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", image(MIB));
    script.claim_faults = [
        Fault::Close,
        Fault::Status(503),
        Fault::Cut(20),
        Fault::Garble,
        Fault::Status(404),
        Fault::Hang(Duration::from_secs(2)),
    ]
    .into();
    let server = Server::start(script);
    assert_eq!(machine.run(&server), FinalAction::Reboot);
    let heartbeat = server.heard.lock().unwrap();
    assert_eq!(heartbeat.claims.len(), 7);
    assert!(heartbeat.claims.iter().all(|claim| *claim == heartbeat.claims[0]));
}

#[test]
fn downloads_resume_at_the_last_byte() {
    let raw = image(3 * MIB);
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", raw.clone());
    script.image_faults = [
        Fault::Status(503),
        Fault::Cut(1_000_000),
        Fault::Close,
        Fault::Cut(1),
        Fault::Cut(0),
        Fault::Status(429),
        Fault::Hang(Duration::from_secs(2)),
        Fault::Cut(77_777),
    ]
    .into();
    let server = Server::start(script);
    assert_eq!(machine.run(&server), FinalAction::Reboot);
    assert!(machine.disk()[..raw.len()] == raw[..]);
    let ranges = server.heard.lock().unwrap().ranges.clone();
    assert_eq!(
        ranges,
        [0, 0, 1_000_000, 1_000_000, 1_000_001, 1_000_001, 1_000_001, 1_000_001, 1_077_778]
    );
}

#[test]
fn servers_without_ranges_or_with_chunks_work() {
    let raw = image(3 * MIB + 5);
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", raw.clone());
    script.chunked = true;
    script.image_faults = [Fault::Cut(MIB + 3), Fault::Whole].into();
    assert_eq!(machine.run(&Server::start(script)), FinalAction::Reboot);
    assert!(machine.disk()[..raw.len()] == raw[..]);
}

#[test]
fn undelivered_reports_do_not_delay_the_work() {
    let raw = image(3 * MIB);
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", raw.clone());
    // The server accepts no report until the test has seen enough.
    script.report_faults = vec![Fault::Close; 100_000].into();
    let server = Server::start(script);
    thread::scope(|scope| {
        let agent = scope.spawn(|| machine.run(&server));
        wait_until("the whole image on the disk", || machine.disk()[..raw.len()] == raw[..]);
        assert!(server.heard.lock().unwrap().reports.is_empty(), "no report was heard");
        server.script.lock().unwrap().report_faults =
            [Fault::Status(500), Fault::Hang(Duration::from_secs(2)), Fault::Garble, Fault::Cut(3)]
                .into();
        assert_eq!(agent.join().unwrap(), FinalAction::Reboot);
    });
    // No change of stage was skipped, although all of them happened before the first report was
    // accepted.
    assert_eq!(server.stages(), ["writing", "installing", "installed"]);
}

#[test]
fn server_restarts_lose_nothing() {
    let raw = image(12 * MIB);
    let machine = TestMachine::new(16 * MIB);
    let mut script = successful_script("raw", raw.clone());
    // Slow enough for three kills before the end, however late the kills come.
    script.slow = Some((64 * 1024, Duration::from_millis(15)));
    let mut server = Server::start(script);
    let (address, heartbeat) = (server.address, server.heard.clone());
    let requests = || heartbeat.lock().unwrap().ranges.len();
    thread::scope(|scope| {
        let agent = scope.spawn(|| machine.run_at(address, &machine));
        for times in 1..=3 {
            wait_until("a request for the image", || requests() >= times);
            thread::sleep(Duration::from_millis(60));
            server.kill();
            thread::sleep(Duration::from_millis(150));
            server.restart();
        }
        assert_eq!(agent.join().unwrap(), FinalAction::Reboot);
    });
    assert!(machine.disk()[..raw.len()] == raw[..]);
    let ranges = heartbeat.lock().unwrap().ranges.clone();
    assert!(ranges.len() >= 4 && ranges.is_sorted(), "{ranges:?}");
    assert!(
        ranges.windows(2).any(|pair| pair[0] < pair[1]),
        "it went on, and did not begin again: {ranges:?}"
    );
    assert_eq!(heartbeat.lock().unwrap().claims.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_faults_do_not_change_the_result(
        image_faults in proptest::collection::vec(fault(), 0..12),
        claim_faults in proptest::collection::vec(fault(), 0..4),
        report_faults in proptest::collection::vec(fault(), 0..6),
        bytes in 2_000..2_500_000_usize,
        chunked: bool,
    ) {
        let raw = image(bytes);
        let machine = TestMachine::new(3 * MIB);
        let mut script = successful_script("raw", raw.clone());
        script.image_faults = image_faults.into();
        script.claim_faults = claim_faults.into();
        script.report_faults = report_faults.into();
        script.chunked = chunked;
        let server = Server::start(script);
        prop_assert_eq!(machine.run(&server), FinalAction::Reboot);
        prop_assert!(machine.disk()[..raw.len()] == raw[..]);
        prop_assert_eq!(server.stages(), ["writing", "installing", "installed"]);
    }
}

/// All retryable faults.
fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Close),
        (0..600_000_usize).prop_map(Fault::Cut),
        prop_oneof![Just(500), Just(502), Just(503), Just(429)].prop_map(Fault::Status),
        Just(Fault::Whole),
    ]
}
