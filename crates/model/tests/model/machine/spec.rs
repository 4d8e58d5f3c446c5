//! Changes of a machine's description while an operation holds it.

use model::id::RunId;
use model::machine::MachineSpec;
use model::target::TargetId;

/// Every field, and whether an operation depends on it. A new field does not compile until it has
/// a row.
#[test]
fn what_an_operation_depends_on_stays_as_it_is() {
    let MachineSpec {
        ssh_endpoint: _,
        bmc_endpoint: _,
        target_cluster_ref: _,
        mac_addresses: _,
        provider: _,
        serial: _,
        customer_id: _,
        bmc_credential: _,
        ssh_credential: _,
        rack: _,
        slot: _,
        root_disk: _,
        node_name: _,
        height_u: _,
        feeds: _,
    } = MachineSpec::default();
    type Change = fn(&mut MachineSpec);
    let table: [(&str, Change, bool); 12] = [
        ("ssh_endpoint", |spec| spec.ssh_endpoint = "h".into(), true),
        ("bmc_endpoint", |spec| spec.bmc_endpoint = "b".into(), true),
        ("target_cluster_ref", |spec| spec.target_cluster_ref = "c".into(), true),
        ("mac_addresses", |spec| spec.mac_addresses = vec!["00:00:00:00:00:01".into()], true),
        ("provider", |spec| spec.provider = "ipmi".into(), true),
        ("serial", |spec| spec.serial = "s".into(), true),
        ("root_disk", |spec| spec.root_disk = "serial:s".into(), true),
        ("node_name", |spec| spec.node_name = "n".into(), true),
        // Other credentials for the same device, and facts about its place.
        ("bmc_credential", |spec| spec.bmc_credential = "bmc".into(), false),
        ("ssh_credential", |spec| spec.ssh_credential = "ssh".into(), false),
        ("customer_id", |spec| spec.customer_id = "c".into(), false),
        ("height_u", |spec| spec.height_u = Some(2), false),
    ];
    let (target, holder) = (TargetId::from_key("m-1"), RunId::trusted("op-7"));
    for (field, change, depends) in table {
        let before = MachineSpec::default();
        let mut after = before.clone();
        change(&mut after);
        assert_eq!(before.check_change(&after, &target, None), Ok(()), "{field}");
        let held = before.check_change(&after, &target, Some(&holder));
        assert_eq!(held.is_err(), depends, "{field}");
        if let Err(refusal) = held {
            assert_eq!(refusal.reason.as_str(), "MACHINE_BUSY");
            assert!(refusal.message.contains("op-7"), "{refusal}");
            assert!(refusal.message.contains(field), "{refusal}");
            let next = refusal.next_command.unwrap();
            assert!(next.starts_with("farrier operation mark-manual op-7"), "{next}");
        }
    }
}
