//! The MAAS client against a fake MAAS that answers like the real one: every call, every fault,
//! lost answers, overload, limits, and the bound on pages.

mod failures;

use crate::certs::Authority;
use crate::http::{Call, Peer, Response};
use crate::maas_api::{
    End, KEY, MaasApi, NodeStatus, OperationTime, PlannedOutcomes, Released, Trouble,
};
use model::fault::{EffectOutcome, Fault, FaultCode};
use model::retry::Backoff;
use providers::http_client::Trust;
use providers::maas::{
    Address, ApiKey, Bmc, CommissionRequest, DeployRequest, EventQuery, InterfaceChange, LinkMode,
    LinkRequest, MAX_EVENT_PAGES, Maas, MaasPowerState, MachineChange, MachineFilter, NewMachine,
    PowerConfig, ReleaseRequest, ResultKind, Settings, Status, StopMode, StorageLayout, TagChange,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const MAC: &str = "aa:bb:cc:00:00:01";

fn settings() -> Settings {
    Settings {
        backoff: Backoff { initial: Duration::from_millis(2), max: Duration::from_millis(50) },
        per_second: 0,
        ..Settings::new(Trust::FirstUse(None))
    }
}

fn client_with(api: &MaasApi, key: &str, settings: Settings) -> Maas {
    let address = Address::parse(&api.url()).unwrap();
    Maas::new(address, ApiKey::parse(key).unwrap(), settings).unwrap()
}

async fn start() -> (MaasApi, Maas) {
    let api = MaasApi::start().await.unwrap();
    let maas = client_with(&api, KEY, settings());
    (api, maas)
}

/// Adds a machine in this status. Returns its system id.
fn add(api: &MaasApi, status: NodeStatus) -> String {
    let mut env = api.state();
    let machine = env.add(MAC);
    machine.status = status;
    if !matches!(status, NodeStatus::New | NodeStatus::Ready | NodeStatus::Broken) {
        machine.owner = Some("admin".into());
    }
    machine.system_id.clone()
}

fn code<T>(result: Result<T, Fault>) -> FaultCode {
    match result {
        Ok(_) => panic!("the call succeeded"),
        Err(fault) => {
            assert!(
                !fault.message.contains("s3cret") && fault.message.contains("http://"),
                "{fault}"
            );
            fault.code
        }
    }
}

fn new_machine(power: PowerConfig) -> NewMachine {
    NewMachine {
        architecture: "amd64/generic".into(),
        macs: vec![MAC.into(), "aa:bb:cc:00:00:02".into()],
        hostname: Some("gpu-1".into()),
        power,
        pool: Some("gpu".into()),
        zone: Some("east".into()),
        description: Some("rack 7, unit 3 & 4".into()),
        commission: false,
    }
}

fn plain() -> CommissionRequest {
    CommissionRequest::default()
}

fn bmc() -> Bmc {
    let more = [("node_id".to_owned(), "System.Embedded.1".to_owned())].into();
    Bmc {
        address: "10.0.0.5".into(),
        user: "root".into(),
        password: "calvin".into(),
        extra_parameters: more,
    }
}

fn jammy() -> DeployRequest {
    DeployRequest {
        image: Some("ubuntu/jammy".into()),
        hwe_kernel: Some("hwe-22.04".into()),
        user_data: Some("#cloud-config\nhostname: é\n".into()),
        enable_hw_sync: true,
        comment: Some("op-1".into()),
    }
}

#[tokio::test]
async fn the_region_reports_version_and_user() {
    let (api, maas) = start().await;
    assert_eq!(maas.version().await.unwrap().version, "3.4.8");
    let whoami = maas.whoami().await.unwrap();
    assert_eq!((whoami.username.as_str(), whoami.is_superuser), ("admin", true));
    let names = |named: Vec<providers::maas::NamedResource>| {
        named.into_iter().map(|named| named.name).collect::<Vec<_>>()
    };
    assert_eq!(names(maas.pools().await.unwrap()), ["default", "gpu"]);
    assert_eq!(names(maas.zones().await.unwrap()), ["default", "east"]);
    assert_eq!(maas.subnets().await.unwrap()[0].cidr, "10.10.0.0/24");
    assert_eq!(maas.boot_resources().await.unwrap()[1].name, "gpu-node");
    assert_eq!(maas.images().await.unwrap(), ["ubuntu/jammy", "custom/gpu-node"]);
    assert_eq!(maas.fingerprint(), None);
    // The version is public, so a wrong key is detected by `whoami`.
    let (known, secret) = KEY.rsplit_once(':').unwrap();
    let token = known.rsplit_once(':').unwrap().1;
    for key in [
        format!("wrong:{token}:{secret}"),
        format!("consumer:wrong:{secret}"),
        format!("consumer:{token}:wrong"),
    ] {
        let stranger = client_with(&api, &key, settings());
        assert!(stranger.version().await.is_ok());
        assert_eq!(code(stranger.whoami().await), FaultCode::LoginRefused, "{key}");
    }
}

/// The numbers and names of the peer are MAAS's, and the client reads them as such.
#[tokio::test]
async fn every_status_is_read_by_its_number() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::New);
    api.state().operation_time = OperationTime::UntilAdvanced;
    for status in NodeStatus::ALL {
        api.state().machines.get_mut(&id).unwrap().status = status;
        let read = maas.machine(&id).await.unwrap();
        assert_eq!((read.status.number(), read.status.words()), (status.number(), status.name()));
        assert_eq!(read.status_name, status.name());
    }
}

#[tokio::test]
async fn a_machine_is_created_once_and_found() {
    let (api, maas) = start().await;
    let made = maas.create(&new_machine(PowerConfig::Redfish(bmc()))).await.unwrap();
    assert_eq!((made.status, made.owner.as_deref()), (Status::New, None));
    assert_eq!((made.pool.name.as_str(), made.zone.name.as_str()), ("gpu", "east"));
    assert_eq!((made.hostname.as_str(), made.power_type.as_str()), ("gpu-1", "redfish"));
    assert_eq!(made.description, "rack 7, unit 3 & 4");
    assert_eq!(made.serial(), None, "it was never commissioned");
    assert!(made.has_mac(MAC) && made.has_mac("AA-BB-CC-00-00-02"));
    let sent = api.state().machines[&made.system_id].power_parameters.clone();
    assert_eq!(
        (sent["power_pass"].as_str(), sent["node_id"].as_str()),
        ("calvin", "System.Embedded.1")
    );
    let again = maas.create(&new_machine(PowerConfig::Manual)).await.unwrap_err();
    assert_eq!(again.code, FaultCode::MaasRefused);
    assert!(again.message.contains("mac_addresses: MAC address"), "{again}");
    assert!(!again.message.contains("calvin"), "{again}");
    assert_eq!(maas.machine(&made.system_id).await.unwrap(), made);
    for (filter, found) in [
        (MachineFilter::default(), 1),
        (MachineFilter::by_mac(MAC), 1),
        (MachineFilter::by_mac("aa:bb:cc:00:00:09"), 0),
        (MachineFilter { hostname: Some("gpu-1".into()), ..MachineFilter::default() }, 1),
        (
            MachineFilter {
                pool: Some("gpu".into()),
                zone: Some("default".into()),
                ..MachineFilter::default()
            },
            0,
        ),
    ] {
        assert_eq!(maas.machines(&filter).await.unwrap().len(), found, "{filter:?}");
    }
    let change = MachineChange {
        hostname: Some("gpu-2".into()),
        pool: Some("default".into()),
        power: Some(PowerConfig::Ipmi(bmc())),
        ..MachineChange::default()
    };
    let changed = maas.update(&made.system_id, &change).await.unwrap();
    assert_eq!((changed.hostname.as_str(), changed.power_type.as_str()), ("gpu-2", "ipmi"));
    assert_eq!((changed.pool.name.as_str(), changed.zone.name.as_str()), ("default", "east"));
    maas.delete(&made.system_id).await.unwrap();
    assert_eq!(code(maas.machine(&made.system_id).await), FaultCode::MaasMachineGone);
    assert_eq!(code(maas.delete(&made.system_id).await), FaultCode::MaasMachineGone);
}

#[tokio::test]
async fn two_machines_may_have_one_mac() {
    let (api, maas) = start().await;
    let (one, two) = (add(&api, NodeStatus::New), add(&api, NodeStatus::Ready));
    let found = maas.machines(&MachineFilter::by_mac(MAC)).await.unwrap();
    assert_eq!(found.into_iter().map(|machine| machine.system_id).collect::<Vec<_>>(), [one, two]);
}

#[tokio::test]
async fn a_machine_from_new_to_released() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::New);
    api.state().machines.get_mut(&id).unwrap().planned =
        PlannedOutcomes { tests: true, ..PlannedOutcomes::default() };
    let status = async || maas.machine(&id).await.unwrap().status;
    let begun = maas.commission(&id, &plain()).await.unwrap();
    assert_eq!((begun.status, begun.owner.as_deref()), (Status::Commissioning, Some("admin")));
    assert_eq!(begun.power_state, MaasPowerState::On);
    let mut observed = Vec::new();
    for _ in 0..5 {
        observed.push(status().await);
    }
    observed.dedup();
    assert_eq!(observed, [Status::Commissioning, Status::Testing, Status::Ready]);
    assert_eq!(maas.allocate(&id, "op-1").await.unwrap().status, Status::Allocated);
    let key = BTreeMap::from([("farrier".to_owned(), "op-1".to_owned())]);
    let annotated = maas.set_workload_annotations(&id, &key).await.unwrap();
    assert_eq!(annotated.workload_annotations, key);
    let deploying = maas.deploy(&id, &jammy()).await.unwrap();
    assert_eq!((deploying.status, deploying.enable_hw_sync), (Status::Deploying, true));
    assert_eq!((deploying.osystem.as_str(), deploying.distro_series.as_str()), ("ubuntu", "jammy"));
    assert_eq!(deploying.sync_interval, Some(Duration::from_secs(900)));
    assert_eq!(api.state().machines[&id].user_data, "#cloud-config\nhostname: é\n");
    assert_eq!([status().await, status().await], [Status::Deploying, Status::Deployed]);
    assert!(maas.lock(&id, "in use").await.unwrap().locked);
    assert_eq!(code(maas.release(&id, &ReleaseRequest::default()).await), FaultCode::MaasRefused);
    assert_eq!(code(maas.lock(&id, "again").await), FaultCode::EffectFailed);
    assert!(!maas.unlock(&id, "").await.unwrap().locked);
    let erased =
        ReleaseRequest { erase: true, quick_erase: Some(true), ..ReleaseRequest::default() };
    assert_eq!(maas.release(&id, &erased).await.unwrap().status, Status::DiskErasing);
    api.state().advance(&id);
    assert_eq!(maas.release(&id, &erased).await.unwrap().status, Status::Releasing, "once more");
    api.state().advance(&id);
    let free = maas.machine(&id).await.unwrap();
    assert_eq!((free.status, free.owner), (Status::Ready, None));
    assert!(
        free.workload_annotations.is_empty(),
        "the annotations of the owner are deleted with the allocation"
    );
    let env = api.state();
    assert_eq!((env.count(&id, "deploy"), env.changes(&id)), (1, 10));
}

#[tokio::test]
async fn surprising_behaviour_of_maas() {
    let (api, maas) = start().await;
    api.state().operation_time = OperationTime::UntilAdvanced;
    // A release may lead to New.
    let id = add(&api, NodeStatus::Deployed);
    api.state().machines.get_mut(&id).unwrap().planned =
        PlannedOutcomes { release: Released::New, ..PlannedOutcomes::default() };
    maas.release(&id, &ReleaseRequest::default()).await.unwrap();
    api.state().advance(&id);
    assert_eq!(maas.machine(&id).await.unwrap().status, Status::New);
    // A release may never end.
    let stuck = add(&api, NodeStatus::Deployed);
    api.state().machines.get_mut(&stuck).unwrap().planned =
        PlannedOutcomes { release: Released::Fails, ..PlannedOutcomes::default() };
    maas.release(&stuck, &ReleaseRequest::default()).await.unwrap();
    api.state().advance(&stuck);
    assert_eq!(maas.machine(&stuck).await.unwrap().status, Status::FailedReleasing);
    // A machine that is allocated to no user cannot be switched on.
    assert_eq!(code(maas.power_on(&id).await), FaultCode::EffectFailed);
    // Switching on an allocated machine deploys it.
    let id = add(&api, NodeStatus::Allocated);
    assert_eq!(maas.power_on(&id).await.unwrap().status, Status::Deploying);
    // A new machine is commissioned at once unless that is forbidden.
    let new = NewMachine {
        commission: true,
        macs: vec!["aa:00:00:00:00:07".into()],
        ..new_machine(PowerConfig::Manual)
    };
    assert_eq!(maas.create(&new).await.unwrap().status, Status::Commissioning);
    // Deploying a machine that is Ready allocates it first.
    let id = add(&api, NodeStatus::Ready);
    assert_eq!(maas.deploy(&id, &jammy()).await.unwrap().owner.as_deref(), Some("admin"));
}

#[tokio::test]
async fn power_is_switched_and_read() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Deployed);
    assert_eq!(maas.power_on(&id).await.unwrap().power_state, MaasPowerState::On);
    assert_eq!(maas.query_power_state(&id).await, Ok(MaasPowerState::On));
    maas.power_off(&id, StopMode::Soft).await.unwrap();
    assert_eq!(maas.query_power_state(&id).await, Ok(MaasPowerState::Off));
    assert_eq!(api.state().changes(&id), 2, "a read changes nothing");
}

#[tokio::test]
async fn a_machine_is_marked_broken_fixed_and_aborted() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Allocated);
    let broken = maas.mark_broken(&id, "no BOSS disk").await.unwrap();
    assert_eq!((broken.status, broken.owner), (Status::Broken, None));
    assert_eq!(broken.status_message, "no BOSS disk");
    assert_eq!(
        code(maas.mark_broken(&id, "").await),
        FaultCode::MaasRefused,
        "it is no longer allocated to this user"
    );
    assert_eq!(maas.mark_fixed(&id, "").await.unwrap().status, Status::Ready);
    assert_eq!(code(maas.mark_fixed(&id, "").await), FaultCode::EffectFailed);
    assert_eq!(maas.commission(&id, &plain()).await.unwrap().status, Status::Commissioning);
    assert_eq!(maas.abort(&id, "").await.unwrap().status, Status::Ready);
    assert_eq!(code(maas.abort(&id, "").await), FaultCode::EffectFailed);
}

#[tokio::test]
async fn disks_are_listed_chosen_and_laid_out() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    let second = {
        let mut env = api.state();
        let disk = env.disk("nvme0n1", "SAMSUNG", 3840);
        env.machines.get_mut(&id).unwrap().disks.push(disk.clone());
        disk["id"].as_i64().unwrap()
    };
    let disks = maas.block_devices(&id).await.unwrap();
    assert_eq!(
        disks.iter().map(|disk| disk.model.as_str()).collect::<Vec<_>>(),
        ["DELLBOSS VD", "SAMSUNG"]
    );
    assert_eq!(disks[1].size_bytes, 3_840_000_000_000);
    maas.set_boot_disk(&id, second).await.unwrap();
    assert_eq!(maas.machine(&id).await.unwrap().boot_disk.unwrap().id, second);
    maas.set_storage_layout(&id, StorageLayout::Lvm, Some(second)).await.unwrap();
    assert_eq!(api.state().machines[&id].layout, "lvm");
    assert_eq!(
        code(maas.set_storage_layout(&id, StorageLayout::Flat, Some(999)).await),
        FaultCode::MaasRefused
    );
    assert_eq!(code(maas.set_boot_disk(&id, 999).await), FaultCode::EffectFailed);
    api.state().machines.get_mut(&id).unwrap().status = NodeStatus::Deployed;
    assert_eq!(code(maas.set_boot_disk(&id, second).await), FaultCode::EffectFailed);
    assert_eq!(
        code(maas.set_storage_layout(&id, StorageLayout::Flat, None).await),
        FaultCode::EffectFailed
    );
    assert_eq!(code(maas.block_devices("nobody").await), FaultCode::MaasMachineGone);
}

#[tokio::test]
async fn interfaces_are_changed_linked_and_unlinked() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    let interface = maas.interfaces(&id).await.unwrap()[0].id;
    let change =
        InterfaceChange { mtu: Some(9000), tags: Some(vec!["roce".into()]), ..Default::default() };
    let changed = maas.update_interface(&id, interface, &change).await.unwrap();
    assert_eq!((changed.effective_mtu, changed.tags), (9000, vec!["roce".to_owned()]));
    let desired = |mode, ip_address: Option<&str>| LinkRequest {
        subnet: 1,
        mode,
        ip_address: ip_address.map(str::to_owned),
        default_gateway: mode == LinkMode::Auto,
    };
    for (mode, address) in
        [(LinkMode::Auto, None), (LinkMode::Dhcp, None), (LinkMode::Static, Some("10.10.0.9"))]
    {
        let linked = maas.link_subnet(&id, interface, &desired(mode, address)).await.unwrap();
        let [link] = &linked.links[..] else { panic!("{linked:?}") };
        assert_eq!((link.mode, link.ip_address.as_deref()), (Some(mode), address));
        assert_eq!(link.subnet.as_ref().unwrap().cidr, "10.10.0.0/24");
        let unlinked = maas.unlink_subnet(&id, interface, link.id).await.unwrap();
        assert!(unlinked.links.is_empty());
    }
    assert_eq!(code(maas.unlink_subnet(&id, interface, 999).await), FaultCode::MaasRefused);
    let nowhere = LinkRequest { subnet: 99, ..desired(LinkMode::Auto, None) };
    assert_eq!(code(maas.link_subnet(&id, interface, &nowhere).await), FaultCode::MaasRefused);
    assert_eq!(code(maas.update_interface(&id, 999, &change).await), FaultCode::EffectFailed);
    api.state().machines.get_mut(&id).unwrap().status = NodeStatus::Deployed;
    assert_eq!(code(maas.update_interface(&id, interface, &change).await), FaultCode::EffectFailed);
}

#[tokio::test]
async fn tags_are_made_and_put_on_machines() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    assert_eq!(maas.create_tag("h100", "eight of them").await.unwrap().name, "h100");
    assert_eq!(code(maas.create_tag("h100", "").await), FaultCode::MaasRefused);
    assert_eq!(maas.tags().await.unwrap()[0].comment, "eight of them");
    let add = TagChange { add: vec![id.clone()], remove: Vec::new() };
    maas.tag_machines("h100", &add).await.unwrap();
    assert_eq!(maas.machine(&id).await.unwrap().tags, ["h100"]);
    let remove = TagChange { add: Vec::new(), remove: vec![id.clone()] };
    maas.tag_machines("h100", &remove).await.unwrap();
    assert!(maas.machine(&id).await.unwrap().tags.is_empty());
    assert_eq!(code(maas.tag_machines("b/200", &add).await), FaultCode::MaasRefused);
}

#[tokio::test]
async fn a_failed_deployment_says_why() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    assert_eq!(maas.installation_log(&id).await, Ok(None));
    api.state().machines.get_mut(&id).unwrap().planned.deployment = End::Fails {
        events: vec!["'cloudinit' searching for network datasources".into()],
        log: "curtin: Installation failed: no datasource\n".into(),
    };
    maas.deploy(&id, &jammy()).await.unwrap();
    let before =
        maas.events(&EventQuery { system_id: id.clone(), ..Default::default() }).await.unwrap();
    let after = before.events.last().map(|event| event.id);
    api.state().advance(&id);
    assert_eq!(maas.machine(&id).await.unwrap().status, Status::FailedDeployment);
    let query = EventQuery { system_id: id.clone(), after, level: Some("DEBUG".into()) };
    let [event, status] = &maas.events(&query).await.unwrap().events[..] else { panic!() };
    assert!(event.description.contains("datasource"), "{event:?}");
    assert_eq!((event.level.as_str(), status.kind.as_str()), ("ERROR", "Failed deployment"));
    let log = maas.installation_log(&id).await.unwrap().unwrap();
    assert!(log.ends_with("\ncurtin: Installation failed: no datasource\n"), "{log}");
    assert!(!log.contains("cloud-init.log"), "only the log of the installer itself: {log}");
    let sets = maas.results(&id, ResultKind::Installation).await.unwrap();
    assert_eq!(sets[0].results[0].exit_status, Some(1));
    assert!(maas.results(&id, ResultKind::Testing).await.unwrap().is_empty());
    assert_eq!(code(maas.results("nobody", ResultKind::Testing).await), FaultCode::MaasMachineGone);
}

#[tokio::test]
async fn commissioning_fails_and_a_deployment_sticks() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::New);
    {
        let mut env = api.state();
        let impact = &mut env.machines.get_mut(&id).unwrap().planned;
        impact.commissioning = End::Fails { events: Vec::new(), log: String::new() };
        impact.deployment = End::Stuck;
    }
    maas.commission(&id, &plain()).await.unwrap();
    api.state().advance(&id);
    assert_eq!(maas.machine(&id).await.unwrap().status, Status::FailedCommissioning);
    api.state().machines.get_mut(&id).unwrap().status = NodeStatus::Ready;
    maas.deploy(&id, &jammy()).await.unwrap();
    for _ in 0..5 {
        assert_eq!(maas.machine(&id).await.unwrap().status, Status::Deploying);
    }
}

#[tokio::test]
async fn events_are_read_page_by_page_up_to_a_bound() {
    const PAGE: usize = 200;
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    let other = add(&api, NodeStatus::Ready);
    let note = |count: usize| {
        let mut env = api.state();
        for number in 0..count {
            env.note_event(&other, "Noise", "");
            env.note_event(&id, "Step", &number.to_string());
        }
    };
    let newest = EventQuery { system_id: id.clone(), ..Default::default() };
    note(2 * PAGE + 50);
    let read = maas.events(&newest).await.unwrap();
    let reported: Vec<String> = read.events.iter().map(|event| event.description.clone()).collect();
    let expected: Vec<String> = (0..2 * PAGE + 50).map(|number| number.to_string()).collect();
    assert_eq!((reported, read.more), (expected, false), "all of them, in order, each once");
    let from = EventQuery { after: Some(read.events[9].id), ..newest.clone() };
    let later = maas.events(&from).await.unwrap();
    assert_eq!((later.events[0].description.as_str(), later.events.len()), ("10", 2 * PAGE + 40));
    note(MAX_EVENT_PAGES * PAGE);
    let requested = api.state().requests.len();
    let bounded = maas.events(&newest).await.unwrap();
    assert_eq!((bounded.events.len(), bounded.more), (MAX_EVENT_PAGES * PAGE, true));
    assert_eq!(api.state().requests.len() - requested, MAX_EVENT_PAGES);
    assert_eq!(
        bounded.events.last().unwrap().description,
        (MAX_EVENT_PAGES * PAGE - 1).to_string()
    );
    let oldest = maas.events(&EventQuery { after: Some(0), ..newest }).await.unwrap();
    assert_eq!((oldest.events[0].description.as_str(), oldest.more), ("0", true));
}

#[tokio::test]
async fn concurrent_requests_are_limited() {
    let (api, _) = start().await;
    let maas = client_with(&api, KEY, Settings { max_in_flight: 3, ..settings() });
    api.state().trouble("whoami", Trouble::Slow(Duration::from_millis(20)), 30);
    let requested: Vec<_> = (0..30)
        .map(|_| {
            let maas = maas.clone();
            tokio::spawn(async move { maas.whoami().await })
        })
        .collect();
    for one in requested {
        one.await.unwrap().unwrap();
    }
    assert_eq!(api.state().most_under_way, 3);
}

#[tokio::test]
async fn one_request_lists_all_machines_of_a_site() {
    const SITE: usize = 1_000;
    let (api, maas) = start().await;
    for number in 0..SITE {
        api.state().add(&format!("aa:00:00:00:{:02x}:{:02x}", number / 256, number % 256));
    }
    assert_eq!(maas.machines(&MachineFilter::default()).await.unwrap().len(), SITE);
    assert_eq!(api.state().requests.len(), 1);
}
