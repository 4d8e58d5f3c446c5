//! Partial updates, by the rules that hold for every kind: a mask names what changes; without a
//! mask nothing is cleared but labels.

use crate::api::{TestServer, field_of, on_both, refused};
use crate::fleet::{Clients, channel};
use proto::FieldMask;
use proto::v1;
use proto::v1::power_shelf_service_client::PowerShelfServiceClient;
use proto::v1::site_service_client::SiteServiceClient;
use proto::v1::switch_service_client::SwitchServiceClient;
use std::collections::HashMap;
use std::fmt::Debug;
use tonic::Code::InvalidArgument;
use tonic::Status;

fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn mask(paths: &[&str]) -> Option<FieldMask> {
    Some(FieldMask { paths: paths.iter().map(ToString::to_string).collect() })
}

/// Checks the rules on a stored object with the labels `a=1` and `b=2`. `patch` has the label
/// `c=3` and another value of the text field `path`; `read` returns that value.
async fn check_rules<M: Debug + Default + Clone>(
    stored: M,
    patch: M,
    path: &str,
    read: impl Fn(&M) -> (String, HashMap<String, String>),
    mut update: impl AsyncFnMut(M, Option<FieldMask>) -> Result<M, Status>,
) {
    let (old, _) = read(&stored);
    let (new, _) = read(&patch);
    let both = labels(&[("a", "1"), ("b", "2")]);
    // Sending the returned message back changes nothing.
    let same = update(stored.clone(), None).await.unwrap();
    assert_eq!(read(&same), (old.clone(), both.clone()));
    // A mask changes what it names, and nothing else.
    let one = update(patch.clone(), mask(&["labels.c"])).await.unwrap();
    assert_eq!(read(&one), (old, labels(&[("a", "1"), ("b", "2"), ("c", "3")])));
    let field = update(patch.clone(), mask(&[path, "labels.c"])).await.unwrap();
    assert_eq!(read(&field).0, new);
    // A named field that the request does not have is cleared.
    let without = update(M::default(), mask(&["labels.c", "labels.b"])).await;
    assert_eq!(read(&without.unwrap()), (new.clone(), labels(&[("a", "1")])));
    // Without a mask nothing is cleared but labels.
    let kept = update(M::default(), None).await.unwrap();
    assert_eq!(read(&kept), (new, labels(&[])));
    for wrong in ["status", "shoe", &format!("{path}.shoe")] {
        let status = refused(
            update(patch.clone(), mask(&[wrong])).await,
            InvalidArgument,
            &["update_mask", wrong, "use one of"],
        );
        assert_eq!(field_of(&status), "update_mask");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mask_names_what_changes() {
    on_both("zero", masks).await;
}

async fn masks(world: &TestServer, mut api: Clients) {
    let two = labels(&[("a", "1"), ("b", "2")]);
    let three = labels(&[("c", "3")]);
    let channel = channel(&world.server.url()).await;

    let spec = |serial: &str| {
        let (provider, serial) = ("sim".into(), serial.into());
        Some(v1::MachineSpec { provider, serial, ..Default::default() })
    };
    let machine = |labels: &HashMap<_, _>, serial: &str| v1::Machine {
        machine_id: "m-1".into(),
        labels: labels.clone(),
        spec: spec(serial),
        status: None,
    };
    let request =
        v1::RegisterMachineRequest { machine: Some(machine(&two, "old")), ..Default::default() };
    let stored = api.machines.register_machine(request).await.unwrap().into_inner();
    let read = |one: &v1::Machine| (one.spec.clone().unwrap().serial, one.labels.clone());
    let mut machines = api.machines.clone();
    check_rules(stored, machine(&three, "new"), "spec.serial", read, async |one, update_mask| {
        let machine = Some(v1::Machine { machine_id: "m-1".into(), ..one });
        let request = v1::UpdateMachineRequest { machine, update_mask, ..Default::default() };
        Ok(machines.update_machine(request).await?.into_inner())
    })
    .await;

    let rack = |labels: &HashMap<_, _>, hardware_type: &str| v1::Rack {
        rack_id: "rack-1".into(),
        labels: labels.clone(),
        hardware_type: hardware_type.into(),
        ..Default::default()
    };
    let request = v1::CreateRackRequest { rack: Some(rack(&two, "old")), dry_run: false };
    let stored = api.racks.create_rack(request).await.unwrap().into_inner();
    let read = |one: &v1::Rack| (one.hardware_type.clone(), one.labels.clone());
    let mut racks = api.racks.clone();
    check_rules(stored, rack(&three, "new"), "hardware_type", read, async |one, update_mask| {
        let rack = Some(v1::Rack { rack_id: "rack-1".into(), ..one });
        let request = v1::UpdateRackRequest { rack, update_mask, ..Default::default() };
        Ok(racks.update_rack(request).await?.into_inner())
    })
    .await;

    let spec = |serial: &str| {
        let (provider, serial) = ("sim".into(), serial.into());
        Some(v1::DeviceSpec { provider, serial, ..Default::default() })
    };
    let switch = |labels: &HashMap<_, _>, serial: &str| v1::Switch {
        switch_id: "sw-1".into(),
        labels: labels.clone(),
        spec: spec(serial),
        status: None,
    };
    let mut switches = SwitchServiceClient::new(channel.clone());
    let request = v1::RegisterSwitchRequest { switch: Some(switch(&two, "old")), dry_run: false };
    let stored = switches.register_switch(request).await.unwrap().into_inner();
    let read = |one: &v1::Switch| (one.spec.clone().unwrap().serial, one.labels.clone());
    check_rules(stored, switch(&three, "new"), "spec.serial", read, async |one, update_mask| {
        let switch = Some(v1::Switch { switch_id: "sw-1".into(), ..one });
        let request = v1::UpdateSwitchRequest { switch, update_mask, ..Default::default() };
        Ok(switches.update_switch(request).await?.into_inner())
    })
    .await;

    let shelf = |labels: &HashMap<_, _>, serial: &str| v1::PowerShelf {
        power_shelf_id: "ps-1".into(),
        labels: labels.clone(),
        spec: spec(serial),
        ..Default::default()
    };
    let mut shelves = PowerShelfServiceClient::new(channel.clone());
    let power_shelf = Some(shelf(&two, "old"));
    let request = v1::RegisterPowerShelfRequest { power_shelf, dry_run: false };
    let stored = shelves.register_power_shelf(request).await.unwrap().into_inner();
    let read = |one: &v1::PowerShelf| (one.spec.clone().unwrap().serial, one.labels.clone());
    check_rules(stored, shelf(&three, "new"), "spec.serial", read, async |one, update_mask| {
        let power_shelf = Some(v1::PowerShelf { power_shelf_id: "ps-1".into(), ..one });
        let request =
            v1::UpdatePowerShelfRequest { power_shelf, update_mask, ..Default::default() };
        Ok(shelves.update_power_shelf(request).await?.into_inner())
    })
    .await;

    let site = |labels: &HashMap<_, _>, zone: &str| v1::Site {
        site_id: "site-1".into(),
        labels: labels.clone(),
        spec: Some(v1::SiteSpec {
            provider: "sim".into(),
            zone: zone.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut sites = SiteServiceClient::new(channel);
    let request = v1::CreateSiteRequest { site: Some(site(&two, "old")), ..Default::default() };
    let stored = sites.create_site(request).await.unwrap().into_inner();
    let read = |one: &v1::Site| (one.spec.clone().unwrap().zone, one.labels.clone());
    check_rules(stored, site(&three, "new"), "spec.zone", read, async |one, update_mask| {
        let site = Some(v1::Site { site_id: "site-1".into(), ..one });
        let request = v1::UpdateSiteRequest { site, update_mask, ..Default::default() };
        Ok(sites.update_site(request).await?.into_inner())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn registering_again_clears_nothing_but_labels() {
    on_both("zero", registered_again).await;
}

/// A client that does not know a field, or an old file of `farrier import`, does not erase it.
async fn registered_again(world: &TestServer, mut api: Clients) {
    let channel = channel(&world.server.url()).await;
    let two = labels(&[("a", "1"), ("b", "2")]);
    let spec = |serial: &str, node_name: &str| v1::MachineSpec {
        serial: serial.into(),
        node_name: node_name.into(),
        provider: "sim".into(),
        ..Default::default()
    };
    let mut register = async |labels: &HashMap<_, _>, spec| {
        let machine =
            v1::Machine { machine_id: "m-1".into(), labels: labels.clone(), spec, status: None };
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        api.machines.register_machine(request).await.unwrap().into_inner()
    };
    register(&two, Some(spec("old", "node-name"))).await;
    let changed = register(&labels(&[("c", "3")]), Some(spec("new", ""))).await;
    assert_eq!(
        (changed.spec, changed.labels),
        (Some(spec("new", "node-name")), labels(&[("c", "3")]))
    );
    let kept = register(&labels(&[]), None).await;
    assert_eq!((kept.spec, kept.labels), (Some(spec("new", "node-name")), labels(&[])));

    let spec = |serial: &str, endpoint: &str| {
        let (serial, bmc_endpoint) = (serial.to_string(), endpoint.to_string());
        Some(v1::DeviceSpec { serial, bmc_endpoint, ..Default::default() })
    };
    let mut switches = SwitchServiceClient::new(channel.clone());
    let mut shelves = PowerShelfServiceClient::new(channel);
    for (given, endpoint) in [(spec("old", "10.0.0.5"), "10.0.0.5"), (spec("new", ""), "10.0.0.5")]
    {
        let switch =
            v1::Switch { switch_id: "sw-1".into(), spec: given.clone(), ..Default::default() };
        let request = v1::RegisterSwitchRequest { switch: Some(switch), dry_run: false };
        let switch = switches.register_switch(request).await.unwrap().into_inner();
        let power_shelf = v1::PowerShelf {
            power_shelf_id: "ps-1".into(),
            spec: given.clone(),
            ..Default::default()
        };
        let request =
            v1::RegisterPowerShelfRequest { power_shelf: Some(power_shelf), dry_run: false };
        let shelf = shelves.register_power_shelf(request).await.unwrap().into_inner();
        for stored in [switch.spec.unwrap(), shelf.spec.unwrap()] {
            assert_eq!(stored.bmc_endpoint, endpoint);
            assert_eq!(stored.serial, given.clone().unwrap().serial);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_name_belongs_to_one_machine_of_its_cluster() {
    on_both("zero", node_names).await;
}

async fn node_names(_world: &TestServer, mut api: Clients) {
    let machine = |id: &str, cluster: &str, node_name: &str| v1::Machine {
        machine_id: id.into(),
        spec: Some(v1::MachineSpec {
            target_cluster_ref: cluster.into(),
            node_name: node_name.into(),
            provider: "sim".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut register = async |machine: v1::Machine| {
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        api.machines.register_machine(request).await
    };
    register(machine("m-1", "east", "n1")).await.unwrap();
    register(machine("m-2", "west", "n1")).await.unwrap();
    register(machine("m-3", "", "n1")).await.unwrap();
    register(machine("m-4", "east", "")).await.unwrap();
    let taken = |machine, other: &'static str| (machine, other);
    for (machine, other) in [
        taken(machine("m-5", "east", "n1"), "m-1"),
        taken(machine("m-2", "east", "n1"), "m-1"),
        // Without a name of its own, a machine is named by its id.
        taken(machine("m-5", "east", "m-4"), "m-4"),
        taken(machine("n1", "east", ""), "m-1"),
    ] {
        let status = refused(register(machine).await, InvalidArgument, &[other, "--node-name"]);
        assert_eq!(field_of(&status), "machine.spec.node_name");
    }
    // The same machine keeps its name, and a name that was given up is free.
    register(machine("m-1", "east", "n1")).await.unwrap();
    register(machine("m-1", "east", "n2")).await.unwrap();
    register(machine("m-5", "east", "n1")).await.unwrap();
    api.delete("m-5").await.unwrap();
    let request = v1::RegisterMachineRequest {
        machine: Some(machine("m-6", "east", "n1")),
        ..Default::default()
    };
    api.machines.register_machine(request).await.unwrap();
}
