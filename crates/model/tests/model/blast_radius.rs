//! Impact on other machines: which ones a refusal names.

use model::blast_radius::{AffectedMachine, Impact, ImpactObjection, check_impact, loses_power};
use model::gate::{Gate, Overrides};
use model::id::{MachineId, PowerShelfId, RunId};

fn affected(id: &str, against: Option<ImpactObjection>) -> AffectedMachine {
    AffectedMachine { machine: MachineId::trusted(id), objection: against }
}

fn refused(impact: Impact, affected: &[AffectedMachine]) -> String {
    check_impact("it", impact, affected, &Overrides::default())
        .expect_err("they are needed")
        .message
}

#[test]
fn a_refusal_says_what_becomes_of_them_and_what_speaks_against_it() {
    let claimed = |run: &str| Some(ImpactObjection::HeldBy(RunId::trusted(run)));
    let all = [
        affected("m-1", Some(ImpactObjection::InService)),
        affected("m-2", claimed("op-1")),
        affected("m-3", None),
        affected("m-4", Some(ImpactObjection::InService)),
        affected("m-5", claimed("op-2")),
        affected("m-6", claimed("op-1")),
    ];
    assert_eq!(
        refused(Impact::PowerLoss, &all),
        "it would take power from machines that are needed: m-1, m-4 are READY and in service; \
         m-2, m-6 are held by op-1; m-5 is held by op-2 (gate in-service)"
    );
    assert_eq!(
        refused(Impact::Restart, &all[..1]),
        "it would restart machines that are needed: m-1 is READY and in service (gate in-service)"
    );
    assert_eq!(check_impact("it", Impact::Restart, &all[2..3], &Overrides::default()), Ok(()));
    let by = |gate| check_impact("it", Impact::PowerLoss, &all, &Overrides::of(&[gate], "fire"));
    assert_eq!(by(Gate::InService), Ok(()));
    let refusal = by(Gate::Health).unwrap_err();
    assert_eq!(refusal.gate, Some(Gate::InService));
    let next = refusal.next_command.unwrap();
    assert!(next.contains("--override in-service,health --reason …"), "{next}");
}

#[test]
fn a_device_loses_power_with_the_last_shelf_that_feeds_it() {
    let ids = |names: &[&str]| -> Vec<PowerShelfId> {
        names.iter().map(|id| PowerShelfId::trusted(*id)).collect()
    };
    for (feeds, off, on, expected) in [
        (&["ps-1"][..], &["ps-1"][..], &[][..], true),
        (&["ps-1"], &["ps-1"], &["ps-2"], true),
        (&["ps-1"], &["ps-2"], &[], false),
        (&["ps-1", "ps-2"], &["ps-1"], &["ps-2"], false),
        (&["ps-1", "ps-2"], &["ps-1"], &[], true),
        (&["ps-1", "ps-2"], &["ps-1", "ps-2"], &["ps-1", "ps-2"], true),
        (&["ps-1", "ps-2", "ps-3"], &["ps-1", "ps-2"], &["ps-3"], false),
        (&[], &["ps-1"], &[], false),
    ] {
        let on = ids(on);
        let lost = loses_power(&ids(feeds), &ids(off), |id| on.contains(id));
        assert_eq!(lost, expected, "{feeds:?} {off:?} {on:?}");
    }
}

#[test]
fn every_machine_of_a_rack_is_named_and_what_is_more_than_a_rack_is_counted() {
    for (count, named, more) in [(18, 18, None), (64, 64, None), (67, 64, Some("; and 3 more"))] {
        let all: Vec<AffectedMachine> = (1..=count)
            .map(|n| affected(&format!("m-{n:03}"), Some(ImpactObjection::InService)))
            .collect();
        let message = refused(Impact::PowerLoss, &all);
        assert_eq!(message.matches("m-").count(), named, "{message}");
        let end = more.unwrap_or("READY and in service");
        assert!(message.ends_with(&format!("{end} (gate in-service)")), "{message}");
    }
}
