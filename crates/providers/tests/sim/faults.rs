//! Fault rules: every action, by machine, effect and verb.

use super::*;
use model::machine::DiskReport;

#[tokio::test]
async fn every_fault_action() {
    let (_dir, memories) = memories();
    for memory in memories {
        for action in Action::ALL {
            let sim = Sim::new(memory.clone(), Speed::Zero);
            // Two actions never answer in time; the others answer, however long that takes.
            let late = FaultRule { delay_ms: 600_000, ..rule(action) };
            let made = sim.add_fault(if action == Action::Slow { late } else { rule(action) });
            let (made, step) = (made.unwrap(), action.as_str());
            let waits = match action {
                Action::Hang | Action::Slow => Duration::from_millis(30),
                Action::Fail | Action::Drop | Action::Garbage | Action::Twice => DEADLINE,
            };
            let requested =
                tokio::time::timeout(waits, answer(&sim, CallVerb::Perform, step, REBOOT)).await;
            let happened = match (action, requested) {
                (Action::Fail, Ok(Err(fault))) => {
                    assert_eq!(fault.code, FaultCode::EffectFailed);
                    false
                }
                (Action::Hang, Err(_timeout)) => false,
                (Action::Drop, Ok(Err(fault))) => {
                    assert_eq!(fault.code, FaultCode::AnswerLost);
                    true
                }
                (Action::Garbage, Ok(Err(fault))) => {
                    assert_eq!(fault.code, FaultCode::AnswerGarbled);
                    true
                }
                (Action::Slow, Err(_)) | (Action::Twice, Ok(Ok(ProviderAnswer::Done(_)))) => true,
                (_, other) => panic!("{action:?}: {other:?}"),
            };
            assert_eq!(sim.list_faults().unwrap()[0].applied_count, 1);
            // Another controller reads what really happened.
            let other = Sim::new(memory.clone(), Speed::Zero);
            let status = answer(&other, CallVerb::GetStatus, step, REBOOT).await.unwrap();
            assert_eq!(matches!(status, ProviderAnswer::Done(_)), happened, "{status:?}");
            let never = action == Action::Hang;
            assert_eq!(status == ProviderAnswer::NeverStarted, never, "{status:?}");
            // The rule is used up, and so is a key that failed: it never acts.
            let again = perform(&other, step, REBOOT).await;
            assert_eq!(again.is_err(), action == Action::Fail, "{again:?}");
            let count = other.effects(&format!("op-1/{step}")).unwrap().remove(0);
            assert_eq!((count.requested, count.applied), (2, u32::from(again.is_ok())));
            assert_eq!(other.clear_faults(Some(&made.id)).unwrap(), 1);
        }
    }
}

#[tokio::test]
async fn slow_answers_come_in_the_end() {
    let sim = Sim::in_ram(Speed::Zero);
    sim.add_fault(rule(Action::Slow)).unwrap();
    let begun = std::time::Instant::now();
    perform(&sim, "slow", REBOOT).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn faults_by_verb_and_effect() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "done", REBOOT).await.unwrap();
    for (effect, verb, step, code) in [
        (ssh("false"), CallVerb::Perform, "ssh", FaultCode::CommandFailed),
        (REBOOT, CallVerb::Perform, "reboot", FaultCode::EffectFailed),
        (REBOOT, CallVerb::Follow, "reboot", FaultCode::EffectFailed),
        // It was done before, and stays done.
        (REBOOT, CallVerb::Follow, "done", FaultCode::AnswerLost),
        (REBOOT, CallVerb::GetStatus, "done", FaultCode::BmcUnreachable),
        (REBOOT, CallVerb::Observe, "done", FaultCode::BmcUnreachable),
        (REBOOT, CallVerb::Stop, "done", FaultCode::BmcUnreachable),
    ] {
        let message = "smoke".to_string();
        let effect_word = effect.name().to_string();
        let rule = FaultRule { verb, effect: effect_word, message, ..rule(Action::Fail) };
        sim.add_fault(rule).unwrap();
        let fault = answer(&sim, verb, step, effect).await.unwrap_err();
        assert_eq!(fault, Fault::new(code, "smoke"), "{verb:?}");
    }
    // A rule for one effect or machine leaves the others alone.
    sim.clear_faults(None).unwrap();
    let elsewhere = FaultRule { machine: "x-*".into(), ..rule(Action::Fail) };
    sim.add_fault(elsewhere).unwrap();
    sim.add_fault(FaultRule { effect: "repave".into(), ..rule(Action::Fail) }).unwrap();
    perform(&sim, "free", REBOOT).await.unwrap();
    assert!(sim.list_faults().unwrap().iter().all(|rule| rule.applied_count == 0));
}

#[tokio::test]
async fn a_fault_while_following_ends_the_work() {
    let call = ManualClock::new();
    let memory = SimStore::ram();
    let instant = Sim::new(memory.clone(), Speed::Zero);
    perform(&instant, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();
    let sim = call.sim(&memory);
    begin_and_crash(&sim, &order(CallVerb::Perform, "repave", repave("a"))).await;
    sim.add_fault(FaultRule { verb: CallVerb::Follow, ..rule(Action::Fail) }).unwrap();
    let fault = answer(&sim, CallVerb::Follow, "repave", repave("a")).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed);
    call.advance(60_000);
    assert_eq!(sim.effects("op-1/repave").unwrap()[0].applied, 0);
    let probe = answer(&sim, CallVerb::Observe, "repave", repave("a")).await;
    assert_eq!(probe, Ok(ProviderAnswer::Differs("image partial is on disk".into())));
}

#[tokio::test]
async fn probes() {
    let (_dir, memories) = memories();
    for memory in memories {
        let sim = Sim::new(memory, Speed::Zero);
        perform(&sim, "join", join("c1")).await.unwrap();
        // A rule for every effect does not apply to probes.
        sim.add_fault(FaultRule { times: 0, ..rule(Action::Fail) }).unwrap();
        let observed = sim.probe(&target("m-1")).await.unwrap();
        let observed = CallOutcome { evidence: observed, ..CallOutcome::default() };
        let expected = [
            (Reachable, true, "PingOK"),
            (BmcReachable, true, "RedfishOK"),
            (InCustomerCluster, true, "Joined:c1"),
        ];
        assert_eq!(evidence(&observed), expected);
        for (action, code) in [
            (Action::Fail, FaultCode::BmcUnreachable),
            (Action::Drop, FaultCode::AnswerLost),
            (Action::Garbage, FaultCode::AnswerGarbled),
        ] {
            sim.add_fault(FaultRule { effect: PROBE.into(), ..rule(action) }).unwrap();
            assert_eq!(sim.probe(&target("m-1")).await.unwrap_err().code, code);
        }
        assert!(sim.probe(&target("m-1")).await.is_ok());
    }
}

#[tokio::test]
async fn bad_rules_are_refused() {
    let sim = Sim::in_ram(Speed::Zero);
    let refusal =
        sim.add_fault(FaultRule { effect: "boil".into(), ..rule(Action::Fail) }).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("fault.effect"));
    assert!(refusal.message.contains("ssh, reboot, netboot"), "{refusal}");
    assert!(sim.list_faults().unwrap().is_empty());
}

/// A disk write that fails on its way goes on by the clock, also when its caller has crashed. What
/// was written stays on the disk, and a new key may succeed.
#[tokio::test]
async fn a_write_fails_at_its_percentage() {
    let (_dir, memories) = memories();
    for memory in memories {
        let clock = ManualClock::new();
        let sim = clock.sim(&memory);
        perform(&Sim::new(memory.clone(), Speed::Zero), "pxe", netboot(NetbootMode::Pxe))
            .await
            .unwrap();
        let rule = FaultRule {
            effect: "repave".into(),
            at_percent: 44,
            times: 1,
            message: "the disk is full".into(),
            ..FaultRule::new(Action::Fail)
        };
        sim.add_fault(rule).unwrap();
        let log = begin_and_crash(&sim, &order(CallVerb::Perform, "write", repave("a"))).await;
        assert!(log.contains("Writing image a") || log.contains("Booting"), "{log}");
        clock.advance(60_000);
        let (answer, _) = call_provider(&sim, &order(CallVerb::Follow, "write", repave("a"))).await;
        let fault = answer.unwrap_err();
        assert_eq!((fault.code, &*fault.message), (FaultCode::EffectFailed, "the disk is full"));
        let observed = super::answer(&sim, CallVerb::Observe, "look", repave("a")).await;
        assert_eq!(observed, Ok(ProviderAnswer::Differs("image partial is on disk".into())));
        let count = sim.effects("op-1/write").unwrap().remove(0);
        assert_eq!(count.applied, 0);
        perform(&Sim::new(memory, Speed::Zero), "again", repave("a")).await.unwrap();
    }
}

/// A write that fails with a code leaves on the disk what the page of the code says.
#[tokio::test]
async fn a_write_leaves_what_the_page_of_its_fault_says() {
    let (_dir, memories) = memories();
    for memory in memories {
        let sim = Sim::new(memory, Speed::Zero);
        for (code, report, image) in [
            (FaultCode::NetbootSilent, DiskReport::Untouched, "factory"),
            (FaultCode::ChecksumWrong, DiskReport::Untouched, "factory"),
            (FaultCode::DiskUnfit, DiskReport::Untouched, "factory"),
            (FaultCode::EffectFailed, DiskReport::Untouched, "factory"),
            (FaultCode::DeploySilent, DiskReport::Written(50), "partial"),
            (FaultCode::InstallFailed, DiskReport::Written(99), "partial"),
            (FaultCode::ReadBackDiffers, DiskReport::Written(99), "partial"),
            (FaultCode::SystemNotBack, DiskReport::Written(99), "partial"),
        ] {
            let step = code.as_str();
            perform(&sim, &format!("pxe-{step}"), netboot(NetbootMode::Pxe)).await.unwrap();
            let rule = FaultRule { code: Some(code), times: 1, ..FaultRule::new(Action::Fail) };
            sim.add_fault(FaultRule { effect: "repave".into(), ..rule }).unwrap();
            let (journal, _lines) = Journal::new();
            let write = order(CallVerb::Perform, step, repave("a"));
            let fault = sim.call(&target("m-1"), &write, &journal).await.unwrap_err();
            assert_eq!((fault.code, journal.disk_report()), (code, Some(report)), "{step}");
            let left = super::answer(&sim, CallVerb::Observe, "look", repave("a")).await;
            let expected = format!("image {image} is on disk");
            assert_eq!(left, Ok(ProviderAnswer::Differs(expected)), "{step}");
        }
    }
}
