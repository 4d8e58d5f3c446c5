//! What needs a person is grouped by its cause: the table of causes, and what each record says.

use crate::support::at;
use model::condition::{ConditionObservation, ConditionType, POWERED_OFF};
use model::effect::{DesiredPower, DeviceFacts};
use model::health::HealthSummary;
use model::id::{MachineId, PowerShelfId, RackId, RunId, SiteId};
use model::lifecycle::RecordHeader;
use model::machine::{ChangeKind, FailedChange, Labels, Machine, MachineSpec, Phase};
use model::power_shelf::PowerShelf;
use model::why::{
    CREDENTIAL, CauseGroup, CauseLinks, ListedObject, Rank, SharedCause, ShelvesByRack, Suspect,
    Urgency, group_by_cause,
};

fn shelf(id: &str, power: DesiredPower) -> PowerShelf {
    let shelf = PowerShelf::new(RecordHeader::new(id, Labels::new(), at(0)), Default::default());
    PowerShelf { facts: DeviceFacts { power: Some(power), ..shelf.facts.clone() }, ..shelf }
}

/// In rack-1 both shelves are off, in rack-2 one of two.
fn shelves() -> ShelvesByRack {
    let rack = |rack: &str, one, other, powers: [DesiredPower; 2]| {
        (RackId::trusted(rack), vec![shelf(one, powers[0]), shelf(other, powers[1])])
    };
    ShelvesByRack::from([
        rack("rack-1", "ps-1", "ps-2", [DesiredPower::Off; 2]),
        rack("rack-2", "ps-3", "ps-4", [DesiredPower::Off, DesiredPower::On]),
    ])
}

fn silent(rack: &str, feeds: &[&str]) -> CauseLinks {
    let feeds = feeds.iter().map(|id| PowerShelfId::trusted(*id)).collect();
    CauseLinks { silent: Some((Some(RackId::trusted(rack)), feeds)), ..CauseLinks::default() }
}

fn on(kind: &'static str, id: &str) -> CauseLinks {
    CauseLinks { depends_on: Some(ListedObject::new(kind, id)), ..CauseLinks::default() }
}

fn node_on(machine: &str, site: &str) -> CauseLinks {
    let silent = Some((None, Vec::new()));
    CauseLinks { silent, site: Some(SiteId::trusted(site)), ..on("machine", machine) }
}

fn switched_off_in(rack: &str) -> CauseLinks {
    CauseLinks { switched_off_in: Some(RackId::trusted(rack)), ..CauseLinks::default() }
}

fn stopped_at(machine: &str) -> CauseLinks {
    CauseLinks { stopped_switching: true, ..on("machine", machine) }
}

fn refused(credential: &str) -> CauseLinks {
    CauseLinks { refused_login: Some(credential.into()), ..CauseLinks::default() }
}

type Row = (&'static str, &'static str, Urgency, CauseLinks);

/// The head of a group, and the ids that it explains.
type Group = (&'static str, &'static [&'static str]);

fn grouped(rows: &[Row]) -> Vec<CauseGroup> {
    let suspect = |(kind, id, urgency, links): &Row| Suspect {
        object: ListedObject::new(kind, *id),
        rank: Rank::new(*urgency, at(5)),
        links: links.clone(),
    };
    group_by_cause(&rows.iter().map(suspect).collect::<Vec<_>>(), &shelves())
}

/// Rows: the objects that need a person, and the groups: the head, and what it explains.
#[test]
fn one_cause_is_one_row() {
    use Urgency::{Degraded, OutOfService, Stopped};
    let alone = CauseLinks::default;
    let cut_off = || CauseLinks { is_cut_off: true, ..CauseLinks::default() };
    let table: [(&str, Vec<Row>, &[Group]); 17] = [
        (
            "both shelves off: machines, a switch, the rack that failed on it, and the nodes",
            vec![
                ("machine", "m-1", OutOfService, silent("rack-1", &["ps-1", "ps-2"])),
                ("machine", "m-2", OutOfService, silent("rack-1", &[])),
                ("node", "node-1", OutOfService, node_on("m-1", "site-1")),
                ("rack", "rack-1", Stopped, on("switch", "sw-1")),
                ("switch", "sw-1", OutOfService, silent("rack-1", &["ps-2"])),
            ],
            &[("ps-1", &["m-1", "m-2", "node-1", "rack-1", "sw-1"])],
        ),
        (
            "one of two shelves off explains only what it alone feeds",
            vec![
                ("machine", "m-1", OutOfService, silent("rack-2", &["ps-3", "ps-4"])),
                ("machine", "m-2", OutOfService, silent("rack-2", &["ps-3"])),
            ],
            &[("m-1", &[]), ("ps-3", &["m-2"])],
        ),
        (
            "a shelf that needs a person itself stands for its cause",
            vec![
                ("machine", "m-1", OutOfService, silent("rack-1", &["ps-1", "ps-2"])),
                ("power_shelf", "ps-2", Stopped, alone()),
            ],
            &[("ps-2", &["m-1"])],
        ),
        (
            "a rack in Error for a device that needs a person",
            vec![
                ("rack", "rack-3", Stopped, on("switch", "sw-9")),
                ("switch", "sw-9", Stopped, alone()),
            ],
            &[("sw-9", &["rack-3"])],
        ),
        (
            "a rack in Error for a device that is well again",
            vec![("rack", "rack-3", Stopped, on("switch", "sw-9"))],
            &[("rack-3", &[])],
        ),
        (
            "a node whose machine is down",
            vec![
                ("machine", "m-1", OutOfService, silent("rack-9", &[])),
                ("node", "node-1", OutOfService, node_on("m-1", "site-1")),
            ],
            &[("m-1", &["node-1"])],
        ),
        (
            "a machine that works, and only lacks something, does not explain its node",
            vec![
                ("machine", "m-1", Degraded, alone()),
                ("node", "node-1", OutOfService, node_on("m-1", "site-1")),
            ],
            &[("node-1", &[]), ("m-1", &[])],
        ),
        (
            "a site that is cut off explains its nodes and their machines",
            vec![
                ("machine", "m-1", OutOfService, silent("rack-9", &[])),
                ("node", "node-1", OutOfService, node_on("m-1", "site-1")),
                ("node", "node-2", OutOfService, node_on("m-2", "site-1")),
                ("node", "node-3", OutOfService, node_on("m-3", "site-2")),
                ("site", "site-1", OutOfService, cut_off()),
            ],
            &[("node-3", &[]), ("site-1", &["m-1", "node-1", "node-2"])],
        ),
        (
            "an operation on a device without power, and one on a device that needs a person",
            vec![
                ("operation", "op-1", Urgency::Overdue, silent("rack-1", &["ps-1"])),
                ("operation", "op-2", Urgency::Overdue, on("switch", "sw-9")),
                ("operation", "op-3", Urgency::Overdue, silent("rack-2", &["ps-4"])),
                ("switch", "sw-9", Stopped, alone()),
            ],
            &[("sw-9", &["op-2"]), ("op-3", &[]), ("ps-1", &["op-1"])],
        ),
        (
            "a power sequence that stopped at one machine, with others and their nodes off",
            vec![
                ("machine", "m-1", Stopped, alone()),
                ("machine", "m-2", OutOfService, switched_off_in("rack-3")),
                ("machine", "m-3", OutOfService, switched_off_in("rack-4")),
                ("node", "node-2", OutOfService, node_on("m-2", "site-1")),
                ("rack", "rack-3", Stopped, stopped_at("m-1")),
                ("rack", "rack-4", Stopped, on("machine", "m-9")),
            ],
            &[("m-1", &["m-2", "node-2", "rack-3"]), ("rack-4", &[]), ("m-3", &[])],
        ),
        (
            "a power sequence that stopped at a machine that is off itself",
            vec![
                ("machine", "m-1", OutOfService, switched_off_in("rack-3")),
                ("rack", "rack-3", Stopped, stopped_at("m-1")),
            ],
            &[("m-1", &["rack-3"])],
        ),
        (
            "a node whose machine has no power, and was not probed since",
            vec![
                ("node", "node-1", OutOfService, silent("rack-1", &["ps-1"])),
                ("node", "node-2", OutOfService, silent("rack-2", &["ps-4"])),
            ],
            &[("node-2", &[]), ("ps-1", &["node-1"])],
        ),
        (
            "a site whose MAAS does not answer explains no silent node",
            vec![
                ("node", "node-1", OutOfService, node_on("m-1", "site-1")),
                ("site", "site-1", OutOfService, alone()),
            ],
            &[("node-1", &[]), ("site-1", &[])],
        ),
        (
            "a site that is cut off because its machines have no power",
            vec![
                ("machine", "m-1", OutOfService, silent("rack-1", &[])),
                ("machine", "m-2", OutOfService, silent("rack-1", &[])),
                ("node", "node-1", OutOfService, node_on("m-1", "site-1")),
                ("node", "node-2", OutOfService, node_on("m-2", "site-1")),
                ("site", "site-1", OutOfService, cut_off()),
            ],
            &[("ps-1", &["m-1", "m-2", "node-1", "node-2", "site-1"])],
        ),
        (
            "a credential that several BMCs refuse",
            vec![
                ("machine", "m-1", Degraded, refused("bmc-a")),
                ("machine", "m-2", Degraded, refused("bmc-a")),
                ("machine", "m-3", Degraded, refused("bmc-b")),
            ],
            &[("bmc-a", &["m-1", "m-2"]), ("m-3", &[])],
        ),
        (
            "a machine that waits for the stopped operation of its node",
            vec![
                ("machine", "m-1", Stopped, on("node", "node-1")),
                ("node", "node-1", Stopped, alone()),
            ],
            &[("node-1", &["m-1"])],
        ),
        ("nothing", vec![], &[]),
    ];
    for (case, rows, expected) in table {
        let groups = grouped(&rows);
        let found: Vec<(&str, Vec<&str>)> = groups
            .iter()
            .map(|one| {
                let explains = one.explains.iter().map(|one| one.id.as_str()).collect();
                (one.object.id.as_str(), explains)
            })
            .collect();
        let expected: Vec<_> = expected.iter().map(|(id, all)| (*id, all.to_vec())).collect();
        assert_eq!(found, expected, "{case}");
        // Every object is in one group, and the group is as urgent as its worst object.
        let listed = |one: &CauseGroup| rows.iter().any(|row| row.1 == one.object.id);
        let heads = groups.iter().filter(|one| listed(one)).count();
        let members: usize = groups.iter().map(|one| one.explains.len()).sum();
        assert_eq!(heads + members, rows.len(), "{case}");
        for one in &groups {
            let own = |row: &&Row| {
                row.1 == one.object.id || one.explains.iter().any(|member| member.id == row.1)
            };
            let worst = rows.iter().filter(own).map(|row| row.2).min();
            assert_eq!(Some(one.rank.urgency), worst, "{case}");
            assert_eq!(one.cause.is_some(), !listed(one), "{case}");
            assert_eq!(one.explain().is_some(), one.cause.is_some(), "{case}");
        }
    }
}

#[test]
fn a_shared_cause_says_what_is_wrong_and_what_to_type() {
    let group = |kind, id: &str, cause| CauseGroup {
        object: ListedObject::new(kind, id),
        rank: Rank::new(Urgency::OutOfService, at(5)),
        cause: Some(cause),
        explains: ["m-1", "m-2"].map(|id| ListedObject::new("machine", id)).to_vec(),
    };
    let dead = ["ps-1", "ps-2"].map(PowerShelfId::trusted).to_vec();
    for (group, headline, next) in [
        (
            group("power_shelf", "ps-1", SharedCause::DeadShelves(dead)),
            "ps-1, ps-2 are off, and no other power shelf feeds what depends on them",
            "farrier power-shelf maintenance power-on --id ps-1 --id ps-2",
        ),
        (
            group(CREDENTIAL, "bmc-a", SharedCause::RefusedLogin("bmc-a".into())),
            "the BMCs of 2 machines refuse the login of bmc-a",
            "farrier credential set bmc-a",
        ),
    ] {
        let told = group.explain().expect("a shared cause");
        assert_eq!((told.headline.as_str(), told.since), (headline, Some(at(5))));
        assert_eq!(told.next_command(), Some(next));
    }
}

/// Only a machine that may have lost its power is explained by a power shelf.
#[test]
fn the_record_of_a_machine_names_its_possible_causes() {
    use ConditionType::{BmcReachable, Reachable};
    let (lost, refused_login) = ("bmc-unreachable", "login-refused");
    let location = || Some((Some(RackId::trusted("rack-1")), vec![PowerShelfId::trusted("ps-1")]));
    let dark = || CauseLinks { silent: location(), ..CauseLinks::default() };
    for (phase, observed, expected) in [
        (Phase::Ready, vec![(Reachable, false, "host-unreachable")], dark()),
        (
            Phase::Ready,
            vec![(Reachable, false, "host-unreachable"), (BmcReachable, false, lost)],
            dark(),
        ),
        (Phase::Ready, vec![(BmcReachable, false, lost)], dark()),
        (
            Phase::Ready,
            vec![(Reachable, false, POWERED_OFF), (BmcReachable, true, "RedfishOK")],
            CauseLinks { silent: location(), ..switched_off_in("rack-1") },
        ),
        // What is known of its BMC may be older than the loss of its power.
        (
            Phase::Ready,
            vec![(Reachable, false, "host-unreachable"), (BmcReachable, true, "RedfishOK")],
            dark(),
        ),
        (Phase::Ready, vec![(BmcReachable, false, refused_login)], refused("bmc-a")),
        (Phase::Maintenance, vec![(BmcReachable, false, lost)], CauseLinks::default()),
        (Phase::Ready, vec![], CauseLinks::default()),
    ] {
        let spec = MachineSpec {
            rack: Some(RackId::trusted("rack-1")),
            feeds: vec![PowerShelfId::trusted("ps-1")],
            bmc_credential: "bmc-a".into(),
            ..MachineSpec::default()
        };
        let mut machine = Machine::new(MachineId::trusted("m-1"), spec, Labels::new(), at(0));
        machine.phase = phase;
        machine.health = HealthSummary::default();
        for (condition, status, reason) in &observed {
            machine.learn(&[ConditionObservation::new(*condition, *status, *reason)], at(1));
        }
        assert_eq!(CauseLinks::of_machine(&machine, None), expected, "{phase:?} {observed:?}");
    }
}

/// Rows: why a machine needs intervention, what else is observed, and whether the stopped operation
/// of its node, op-1, explains it.
#[test]
fn a_machine_is_explained_by_the_stopped_operation_of_its_node() {
    use ConditionType::{BmcReachable, NeedsIntervention};
    let (node, run) = (ListedObject::new("node", "node-1"), RunId::trusted("op-1"));
    for (reason, bmc_answers, explained) in [
        ("agent-silent:op-1", true, true),
        ("agent-silent:op-2", true, false),
        ("agent-silent:op-1", false, false),
    ] {
        let id = MachineId::trusted("m-1");
        let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), at(0));
        let observed = [(NeedsIntervention, true, reason), (BmcReachable, bmc_answers, "so")];
        for (condition, status, reason) in observed {
            machine.learn(&[ConditionObservation::new(condition, status, reason)], at(1));
        }
        let links = CauseLinks::of_machine(&machine, Some((&node, &run)));
        assert_eq!(links.depends_on == Some(node.clone()), explained, "{reason}: {links:?}");
        assert_eq!(CauseLinks::of_machine(&machine, None).depends_on, None);
    }
}

/// A machine that is dark, and whose last change failed too, needs a person for itself. A change of
/// its power may have failed because it is dark.
#[test]
fn a_failed_change_keeps_its_row() {
    for kind in ChangeKind::ALL {
        let id = MachineId::trusted("m-1");
        let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), at(0));
        machine.phase = Phase::Ready;
        let lost = ConditionObservation::new(ConditionType::BmcReachable, false, "bmc-unreachable");
        machine.learn(&[lost], at(1));
        let run = RunId::trusted("op-1");
        let failed = FailedChange { kind, run, since: at(2), wanted_power: None };
        machine.failed_changes.insert(failed);
        let alone = CauseLinks::of_machine(&machine, None) == CauseLinks::default();
        assert_eq!(alone, kind != ChangeKind::Power, "{kind:?}");
    }
}
