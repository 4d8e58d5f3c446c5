//! The machines that lose power or the fabric when shelves are switched off, by each rule.

use crate::support::at;
use model::blast_radius::{AffectedMachine, ImpactObjection, PoweredDevice};
use model::effect::DesiredPower;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, PowerShelfId, RackId};
use model::lifecycle::{DeviceSpec, RecordHeader};
use model::machine::Labels;
use model::power_shelf::maintenance::{
    NamedShelf, PowerChangeRequest, admit_power_off, preview_power_change,
};
use model::power_shelf::topology::PowerTopology;
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::target::{TargetId, TargetKind};

/// A shelf: its id, its rack (empty: none), and whether it is on.
type ShelfRow = (&'static str, &'static str, bool);
/// A device: its id, its rack (empty: none), and its feeds.
type DeviceRow = (&'static str, &'static str, &'static [&'static str]);

fn rack(id: &str) -> Option<RackId> {
    (!id.is_empty()).then(|| RackId::trusted(id))
}

fn shelf(&(id, in_rack, on): &ShelfRow) -> PowerShelf {
    let head = RecordHeader::new(id, Labels::new(), at(0));
    let head = RecordHeader { rack: rack(in_rack), ..head };
    let mut shelf = PowerShelf::new(head, DeviceSpec::default());
    shelf.state = PowerShelfState::Ready;
    shelf.facts.power = Some(if on { DesiredPower::On } else { DesiredPower::Off });
    shelf
}

fn device(&(id, in_rack, feeds): &DeviceRow) -> PoweredDevice {
    let kind = if id.starts_with("sw-") { TargetKind::Switch } else { TargetKind::Machine };
    let objection = Some(ImpactObjection::InService);
    let affected = AffectedMachine { machine: MachineId::trusted(id), objection };
    PoweredDevice {
        target: TargetId::new(kind, id),
        rack: rack(in_rack),
        feeds: feeds.iter().map(|id| PowerShelfId::trusted(*id)).collect(),
        affected: (kind == TargetKind::Machine).then_some(affected),
    }
}

fn topology(shelves: &[ShelfRow], devices: &[DeviceRow]) -> PowerTopology {
    PowerTopology {
        shelves: shelves.iter().map(shelf).collect(),
        devices: devices.iter().map(device).collect(),
    }
}

fn names(machines: &[AffectedMachine]) -> Vec<&str> {
    machines.iter().map(|one| one.machine.as_str()).collect()
}

const BOTH: [ShelfRow; 2] = [("ps-1", "rack-1", true), ("ps-2", "rack-1", true)];

struct Case {
    off: &'static [&'static str],
    shelves: &'static [ShelfRow],
    devices: &'static [DeviceRow],
    lost: &'static [&'static str],
    fabric: &'static [&'static str],
    rules: &'static [&'static str],
}

const CASES: &[Case] = &[
    // Without feeds, another shelf of the rack is enough.
    Case {
        off: &["ps-1"],
        shelves: &BOTH,
        devices: &[("m-1", "rack-1", &[]), ("sw-1", "rack-1", &[])],
        lost: &[],
        fabric: &[],
        rules: &["rack-1 keeps its power: ps-2 stays on, 1 of 2"],
    },
    Case {
        off: &["ps-1", "ps-2"],
        shelves: &BOTH,
        devices: &[("m-1", "rack-1", &[]), ("sw-1", "rack-1", &[])],
        lost: &["m-1"],
        fabric: &[],
        rules: &[
            "rack-1 has no other shelf that is known to stay on, so all of its machines would lose power",
        ],
    },
    // Feeds decide where they are given: ps-2 does not help m-1.
    Case {
        off: &["ps-1"],
        shelves: &BOTH,
        devices: &[
            ("m-1", "rack-1", &["ps-1"]),
            ("m-2", "rack-1", &["ps-1", "ps-2"]),
            ("m-3", "rack-1", &["ps-2"]),
            ("m-4", "rack-1", &[]),
        ],
        lost: &["m-1"],
        fabric: &[],
        rules: &[
            "without feeds (m-4): rack-1 keeps its power: ps-2 stays on, 1 of 2",
            "by feeds, without power: m-1 (no other shelf that feeds them is known to stay on)",
            "by feeds, power is kept: m-2 (another shelf that feeds them stays on)",
            "by feeds, power is kept: m-3 (none of these shelves feeds them)",
        ],
    },
    // With both feeds off, a machine on both is lost too.
    Case {
        off: &["ps-1", "ps-2"],
        shelves: &[("ps-1", "rack-1", true), ("ps-2", "rack-1", true), ("ps-3", "rack-1", true)],
        devices: &[
            ("m-1", "rack-1", &["ps-1", "ps-2"]),
            ("m-2", "rack-1", &["ps-1", "ps-2", "ps-3"]),
            ("m-3", "rack-1", &["ps-3"]),
        ],
        lost: &["m-1"],
        fabric: &[],
        rules: &[
            "by feeds, without power: m-1 (no other shelf that feeds them is known to stay on)",
            "by feeds, power is kept: m-2 (another shelf that feeds them stays on)",
            "by feeds, power is kept: m-3 (none of these shelves feeds them)",
        ],
    },
    // The other feed is off already.
    Case {
        off: &["ps-1"],
        shelves: &[("ps-1", "rack-1", true), ("ps-2", "rack-1", false)],
        devices: &[("m-1", "rack-1", &["ps-1", "ps-2"]), ("m-2", "rack-1", &["ps-2"])],
        lost: &["m-1"],
        fabric: &[],
        rules: &[
            "by feeds, without power: m-1 (no other shelf that feeds them is known to stay on)",
            "by feeds, power is kept: m-2 (none of these shelves feeds them)",
        ],
    },
    // No shelf of the rack stays on, but a shelf in no rack feeds m-1.
    Case {
        off: &["ps-1"],
        shelves: &[("ps-1", "rack-1", true), ("ps-9", "", true)],
        devices: &[("m-1", "rack-1", &["ps-1", "ps-9"]), ("m-2", "rack-1", &[])],
        lost: &["m-2"],
        fabric: &[],
        rules: &[
            "without feeds (m-2): rack-1 has no other shelf that is known to stay on, so they would lose power",
            "by feeds, power is kept: m-1 (another shelf that feeds them stays on)",
        ],
    },
    // A shelf in no rack: its devices are known by their feeds.
    Case {
        off: &["ps-9"],
        shelves: &[("ps-1", "rack-1", true), ("ps-9", "", true)],
        devices: &[("m-1", "rack-1", &["ps-9"]), ("m-2", "rack-1", &[]), ("m-3", "", &["ps-9"])],
        lost: &["m-1", "m-3"],
        fabric: &[],
        rules: &[
            "by feeds, without power: m-1, m-3 (no other shelf that feeds them is known to stay on)",
        ],
    },
    Case {
        off: &["ps-9"],
        shelves: &[("ps-9", "", true)],
        devices: &[],
        lost: &[],
        fabric: &[],
        rules: &["ps-9 stands in no rack: it is not known what it feeds"],
    },
    // Feeds that do not exist any more are ignored; without any the rule of the rack holds.
    Case {
        off: &["ps-1"],
        shelves: &[("ps-1", "rack-1", true)],
        devices: &[("m-1", "rack-1", &["ps-gone"]), ("m-2", "rack-1", &["ps-1", "ps-gone"])],
        lost: &["m-1", "m-2"],
        fabric: &[],
        rules: &[
            "without feeds (m-1): rack-1 has no other shelf that is known to stay on, so they would lose power",
            "by feeds, without power: m-2 (no other shelf that feeds them is known to stay on)",
        ],
    },
    // A switch without power takes the fabric from machines that keep theirs.
    Case {
        off: &["ps-1"],
        shelves: &BOTH,
        devices: &[
            ("m-1", "rack-1", &["ps-2"]),
            ("m-2", "rack-1", &["ps-1"]),
            ("sw-1", "rack-1", &["ps-1"]),
        ],
        lost: &["m-2"],
        fabric: &["m-1"],
        rules: &[
            "by feeds, without power: m-2, sw-1 (no other shelf that feeds them is known to stay on)",
            "by feeds, power is kept: m-1 (none of these shelves feeds them)",
            "the other machines of rack-1 would lose the fabric, because of sw-1",
        ],
    },
];

#[test]
fn feeds_decide_where_they_are_given_and_the_rack_elsewhere() {
    for case in CASES {
        let Case { off, shelves, devices, lost, fabric, rules } = case;
        let off: Vec<PowerShelfId> = off.iter().map(|id| PowerShelfId::trusted(*id)).collect();
        let found = topology(shelves, devices).power_loss(&off);
        let context = format!("{off:?} {shelves:?} {devices:?}");
        assert_eq!(names(&found.machines), *lost, "{context}");
        assert_eq!(names(&found.fabric), *fabric, "{context}");
        assert_eq!(found.rules, *rules, "{context}");
    }
}

/// A request and the check at its start refuse both kinds of loss.
#[test]
fn the_loss_of_the_fabric_is_refused_as_well() {
    let topology = topology(&BOTH, &[("m-1", "rack-1", &["ps-2"]), ("sw-1", "rack-1", &["ps-1"])]);
    let shelf = shelf(&BOTH[0]);
    let request = |gates: &[Gate]| PowerChangeRequest {
        ids: vec![shelf.id()],
        operation: DesiredPower::Off,
        initiator: "ada".into(),
        overrides: Overrides::of(gates, "fire"),
        request_id: None,
    };
    let named = [NamedShelf { id: shelf.id(), shelf: Some(shelf.clone()), existing_run: None }];
    let preview = preview_power_change(&request(&[]), &named, &topology);
    let refusal = preview.permitted().unwrap_err();
    assert!(refusal.message.contains("take the fabric from machines"), "{}", refusal.message);
    assert_eq!((preview.affected.len(), names(&preview.fabric_loss)), (0, vec!["m-1"]));
    for (gates, passed) in [(&[][..], false), (&[Gate::Health], false), (&[Gate::InService], true)]
    {
        let request = request(gates);
        let preview = preview_power_change(&request, &named, &topology);
        assert_eq!(preview.permitted().is_ok(), passed, "{gates:?}");
        let admitted = admit_power_off(&shelf, &topology, &request.overrides);
        assert_eq!(admitted.is_ok(), passed, "{gates:?}");
        if let Err(refusal) = admitted {
            assert_eq!(
                (refusal.reason.as_str(), refusal.gate),
                ("MACHINES_IN_SERVICE", Some(Gate::InService))
            );
        }
    }
}
