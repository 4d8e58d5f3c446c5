//! Power shelves: services without a System, with power at the chassis, at the outlets or at each
//! supply.

use crate::datacenter_fixture::{DatacenterFixture, done_message, target_behind, work};
use crate::fake_bmc::FakeBmc;
use crate::http::{Call, Peer, Response};
use model::condition::ConditionType;
use model::effect::{CallVerb, DesiredPower, DeviceWork, Effect, PowerOffPolicy, ProviderAnswer};
use model::fault::FaultCode;
use model::target::TargetKind;
use providers::{Provider, Target};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub const CHASSIS: &str = "/redfish/v1/Chassis/PowerShelf_0";
const SHELF: &str = "/redfish/v1/PowerEquipment/PowerShelves/1";
const SUPPLIES: &str = "/redfish/v1/Chassis/PowerShelf_0/PowerSubsystem/PowerSupplies";
const OUTLETS: &str = "/redfish/v1/PowerEquipment/PowerShelves/1/Outlets";
const ON: Effect =
    Effect::Power { to: DesiredPower::On, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
const OFF: Effect =
    Effect::Power { to: DesiredPower::Off, power_off: PowerOffPolicy::PROVIDER_DEFAULT };

/// The resource that switches the shelf's power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerControl {
    Chassis,
    Supplies,
    Outlets,
}

/// A shelf with everything on, and no System.
pub fn shelf(at: PowerControl) -> FakeBmc {
    let env = FakeBmc::new();
    env.remove("/redfish/v1/Systems");
    let root = json!({"@odata.id": "/redfish/v1/", "Chassis": {"@odata.id": "/redfish/v1/Chassis"},
        "UpdateService": {"@odata.id": "/redfish/v1/UpdateService"}});
    env.put("/redfish/v1", root);
    env.put_list("/redfish/v1/Chassis", &["/redfish/v1/Chassis/BMC_eeprom", CHASSIS]);
    env.put(
        "/redfish/v1/Chassis/BMC_eeprom",
        json!({"Id": "BMC_eeprom", "ChassisType": "Component"}),
    );
    let manager = "/redfish/v1/Managers/bmc";
    env.put(manager, json!({"@odata.id": manager, "FirmwareVersion": "4.1"}));
    let firmware = "/redfish/v1/UpdateService/FirmwareInventory";
    env.put("/redfish/v1/UpdateService", json!({"FirmwareInventory": {"@odata.id": firmware}}));
    env.put_list(firmware, &["/redfish/v1/UpdateService/FirmwareInventory/PSU_1"]);
    env.put(
        "/redfish/v1/UpdateService/FirmwareInventory/PSU_1",
        json!({"Id": "PSU_1", "Version": "0.9"}),
    );
    let mut chassis = json!({"@odata.id": CHASSIS, "Id": "PowerShelf_0", "ChassisType": "Shelf",
        "Manufacturer": "Delta", "Model": "PF-1333", "SerialNumber": "SH-7",
        "Links": {"ManagedBy": [{"@odata.id": manager}]},
        "PowerSubsystem": {"@odata.id": "/redfish/v1/Chassis/PowerShelf_0/PowerSubsystem"}});
    env.put(
        "/redfish/v1/Chassis/PowerShelf_0/PowerSubsystem",
        json!({"PowerSupplies": {"@odata.id": SUPPLIES}}),
    );
    let supplies: Vec<String> = (1..=3).map(|n| format!("{SUPPLIES}/{n}")).collect();
    env.put_list(SUPPLIES, &supplies.iter().map(String::as_str).collect::<Vec<_>>());
    for path in &supplies {
        let mut supply = json!({"@odata.id": path, "Status": {"State": "Enabled", "Health": "OK"}});
        if at == PowerControl::Supplies {
            supply["Actions"] = reset(path, "PowerSupply");
        }
        env.put(path, supply);
    }
    // An empty bay is no supply.
    env.put(&supplies[2], json!({"Status": {"State": "Absent"}}));
    match at {
        PowerControl::Supplies => {}
        PowerControl::Chassis => {
            chassis["PowerState"] = json!("On");
            chassis["Actions"] = reset(CHASSIS, "Chassis");
        }
        PowerControl::Outlets => add_power_equipment(&env),
    }
    env.put(CHASSIS, chassis);
    env
}

/// The same shelf under PowerEquipment, with two outlets.
fn add_power_equipment(env: &FakeBmc) {
    env.set("/redfish/v1", "/PowerEquipment", json!({"@odata.id": "/redfish/v1/PowerEquipment"}));
    let list = "/redfish/v1/PowerEquipment/PowerShelves";
    env.put("/redfish/v1/PowerEquipment", json!({"PowerShelves": {"@odata.id": list}}));
    env.put_list(list, &[SHELF]);
    env.put(
        SHELF,
        json!({"@odata.id": SHELF, "Id": "1", "EquipmentType": "PowerShelf", "SerialNumber": "SH-7",
            "Manufacturer": "Contoso", "Model": "ShelfMaster", "FirmwareVersion": "7.2",
            "Outlets": {"@odata.id": OUTLETS}, "Links": {"Chassis": [{"@odata.id": CHASSIS}]}}),
    );
    let outlets = [format!("{OUTLETS}/A1"), format!("{OUTLETS}/A2")];
    env.put_list(OUTLETS, &[&outlets[0], &outlets[1]]);
    for path in &outlets {
        let target = format!("{path}/Actions/Outlet.PowerControl");
        env.put(
            path,
            json!({"@odata.id": path, "PowerState": "On",
                "Actions": {"#Outlet.PowerControl": {"target": target}}}),
        );
    }
}

fn reset(path: &str, kind: &str) -> Value {
    json!({format!("#{kind}.Reset"): {"target": format!("{path}/Actions/{kind}.Reset"),
        "ResetType@Redfish.AllowableValues": ["On", "ForceOff"]}})
}

/// Switches the power as a shelf does.
pub fn switch_power(env: &FakeBmc, call: &Call) -> Option<Response> {
    let (path, action) = call.path.split_once("/Actions/").filter(|_| call.method == "POST")?;
    let body: Value = serde_json::from_str(&call.body).unwrap();
    let name = body.get("ResetType").or(body.get("PowerState")).unwrap().as_str().unwrap();
    let on = name == "On";
    match action {
        "PowerSupply.Reset" => {
            let state = if on { "Enabled" } else { "StandbyOffline" };
            env.set(path, "/Status/State", json!(state));
        }
        _ => env.set(path, "/PowerState", json!(if on { "On" } else { "Off" })),
    }
    Some(Response::status(204, ""))
}

async fn serve(env: &FakeBmc) -> Peer {
    let inner = env.clone();
    env.serve_except(move |call| switch_power(&inner, call)).await
}

fn posts(peer: &Peer) -> Vec<String> {
    let calls = peer.calls();
    let posts = calls.iter().filter(|call| call.method == "POST");
    posts.map(|call| format!("{} {}", call.path, call.body)).collect()
}

fn shelf_target(peer: &Peer) -> Target {
    target_behind(TargetKind::PowerShelf, peer)
}

#[tokio::test]
async fn a_shelf_is_switched_off_and_on_wherever_its_power_is() {
    for (at, count) in
        [(PowerControl::Chassis, 1), (PowerControl::Supplies, 2), (PowerControl::Outlets, 2)]
    {
        let peer = serve(&shelf(at)).await;
        let facts =
            DatacenterFixture::new().replica().poll_device(&shelf_target(&peer)).await.unwrap();
        assert_eq!(facts.power, Some(DesiredPower::On), "{at:?}");
        // Nothing to do.
        let fixture = DatacenterFixture::new();
        assert_eq!(
            done_message(fixture.call_provider(&shelf_target(&peer), CallVerb::Perform, &ON).await),
            "power is on: it was on already"
        );
        assert_eq!(posts(&peer), [""; 0]);
        for (effect, power, words) in [
            (OFF, DesiredPower::Off, "power is off: it is off"),
            (ON, DesiredPower::On, "power is on: it is on"),
        ] {
            let fixture = DatacenterFixture::new();
            let Ok(ProviderAnswer::Done(outcome)) =
                fixture.call_provider(&shelf_target(&peer), CallVerb::Perform, &effect).await
            else {
                panic!("{at:?}")
            };
            assert_eq!(outcome.message, words, "{at:?}");
            assert_eq!(outcome.facts.unwrap().power, Some(power));
            assert!(outcome.evidence.is_empty(), "a shelf has no host");
            let observed = fixture.replica().poll_device(&shelf_target(&peer)).await.unwrap();
            assert_eq!(observed.power, Some(power), "{at:?}");
        }
        assert_eq!(posts(&peer).len(), 2 * count, "{at:?}: {:?}", posts(&peer));
    }
}

/// A shelf has no operating system to shut down, whatever policy is configured for machines.
#[tokio::test]
async fn the_power_policy_of_machines_does_not_apply_to_shelves() {
    let peer = serve(&shelf(PowerControl::Chassis)).await;
    let mut fixture = DatacenterFixture::new();
    fixture.settings.power_timeouts.graceful = std::time::Duration::from_secs(60);
    fixture.settings.power_timeouts.force = false;
    assert_eq!(
        done_message(fixture.call_provider(&shelf_target(&peer), CallVerb::Perform, &OFF).await),
        "power is off: it is off"
    );
}

#[tokio::test]
async fn a_half_switched_shelf_is_continued() {
    let env = shelf(PowerControl::Supplies);
    let (inner, deaf) = (env.clone(), Arc::new(AtomicBool::new(true)));
    let hears = Arc::clone(&deaf);
    let second = format!("{SUPPLIES}/2/Actions/PowerSupply.Reset");
    let peer = env
        .serve_except(move |call| {
            if call.is("POST", &second) && hears.load(Ordering::SeqCst) {
                return Some(Response::status(400, "{}"));
            }
            switch_power(&inner, call)
        })
        .await;
    let fixture = DatacenterFixture::new();
    let fault =
        fixture.call_provider(&shelf_target(&peer), CallVerb::Perform, &OFF).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::AnswerLost, "half of the shelf is off: {fault}");
    assert!(fault.message.contains("1 parts were switched"), "{fault}");
    assert_eq!(
        fixture.call_provider(&shelf_target(&peer), CallVerb::GetStatus, &OFF).await,
        Ok(ProviderAnswer::UnderWay)
    );
    deaf.store(false, Ordering::SeqCst);
    assert_eq!(
        done_message(fixture.call_provider(&shelf_target(&peer), CallVerb::Follow, &OFF).await),
        "power is off: it is off"
    );
}

#[tokio::test]
async fn a_shelf_reports_its_inventory() {
    for (at, vendor, versions) in [
        (PowerControl::Supplies, "Delta", vec![("BMC", "4.1"), ("PSU_1", "0.9")]),
        (PowerControl::Outlets, "Contoso", vec![("BMC", "7.2"), ("PSU_1", "0.9")]),
    ] {
        let peer = serve(&shelf(at)).await;
        let answer = DatacenterFixture::new()
            .call_provider(&shelf_target(&peer), CallVerb::Perform, &work(DeviceWork::Read))
            .await;
        let Ok(ProviderAnswer::Done(outcome)) = answer else { panic!("{answer:?}") };
        let facts = outcome.facts.unwrap();
        assert_eq!((facts.manufacturer.as_str(), facts.serial.as_str()), (vendor, "SH-7"));
        assert_eq!(facts.power, Some(DesiredPower::On));
        let found: Vec<(&str, &str)> =
            facts.firmware.iter().map(|(one, two)| (one.as_str(), two.as_str())).collect();
        assert_eq!(found, versions);
    }
}

#[tokio::test]
async fn the_requested_shelf_is_chosen() {
    let env = shelf(PowerControl::Chassis);
    let other = "/redfish/v1/Chassis/PowerShelf_1";
    env.put(other, json!({"@odata.id": other, "ChassisType": "Shelf", "SerialNumber": "SH-8", "PowerState": "On"}));
    env.put_list("/redfish/v1/Chassis", &[CHASSIS, other]);
    let peer = serve(&env).await;
    let mut target = shelf_target(&peer);
    let fault =
        DatacenterFixture::new().call_provider(&target, CallVerb::Perform, &OFF).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::SystemAmbiguous, "{fault}");
    assert!(fault.message.contains("SH-7") && fault.message.contains("SH-8"), "{fault}");
    target.spec.serial = "sh-7".into();
    assert_eq!(
        done_message(
            DatacenterFixture::new().call_provider(&target, CallVerb::Perform, &OFF).await
        ),
        "power is off: it is off"
    );
    assert_eq!(env.get(other)["PowerState"], json!("On"));
    target.spec.serial = "SH-9".into();
    let fault =
        DatacenterFixture::new().call_provider(&target, CallVerb::Perform, &OFF).await.unwrap_err();
    assert!(fault.message.contains("None is \"SH-9\""), "{fault}");
}

#[tokio::test]
async fn a_check_names_all_differences_and_a_read_only_login() {
    let env = shelf(PowerControl::Chassis);
    let peer = serve(&env).await;
    let desired = |psu: &str| BTreeMap::from([("PSU_1".to_owned(), psu.to_owned())]);
    let check = |psu, power| work(DeviceWork::Check { firmware: desired(psu), power: Some(power) });
    let fixture = DatacenterFixture::new();
    let right = fixture
        .call_provider(&shelf_target(&peer), CallVerb::Perform, &check("0.9", DesiredPower::On))
        .await;
    assert_eq!(done_message(right), "reachable, 1 components as expected, power is on");
    let fault = fixture
        .call_provider(&shelf_target(&peer), CallVerb::Perform, &check("1.0", DesiredPower::Off))
        .await
        .unwrap_err();
    assert_eq!(fault.code, FaultCode::ReadBackDiffers);
    assert_eq!(
        fault.message,
        "power is on, and should be off; PSU_1 is at 0.9, and should be at 1.0"
    );

    let configure = work(DeviceWork::Configure);
    let reported = done_message(
        fixture.call_provider(&shelf_target(&peer), CallVerb::Perform, &configure).await,
    );
    assert!(reported.contains("does not tell what it may do"), "{reported}");
    let (accounts, telemetry) = ("/redfish/v1/AccountService", "/redfish/v1/TelemetryService");
    env.set("/redfish/v1", "/AccountService", json!({ "@odata.id": accounts }));
    env.set("/redfish/v1", "/TelemetryService", json!({ "@odata.id": telemetry }));
    env.put(accounts, json!({"Accounts": {"@odata.id": "/redfish/v1/AccountService/Accounts"}}));
    env.put_list("/redfish/v1/AccountService/Accounts", &["/redfish/v1/AccountService/Accounts/1"]);
    let account = "/redfish/v1/AccountService/Accounts/1";
    env.put(account, json!({"UserName": "root", "RoleId": "Administrator"}));
    env.put(telemetry, json!({"@odata.id": telemetry, "ServiceEnabled": false}));
    let observed = fixture.call_provider(&shelf_target(&peer), CallVerb::Observe, &configure).await;
    assert_eq!(observed, Ok(ProviderAnswer::Differs("its telemetry service is off".into())));
    let reported = done_message(
        fixture.call_provider(&shelf_target(&peer), CallVerb::Perform, &configure).await,
    );
    assert!(
        reported.contains("administers as Administrator")
            && reported.contains("was off and is on now"),
        "{reported}"
    );
    assert_eq!(env.get(telemetry)["ServiceEnabled"], json!(true));
    env.set(account, "/RoleId", json!("ReadOnly"));
    let fault = fixture
        .call_provider(&shelf_target(&peer), CallVerb::Perform, &configure)
        .await
        .unwrap_err();
    assert_eq!(fault.code, FaultCode::CredentialMissing, "{fault}");
    // That is no refused login, and causes no lockout.
    assert!(fixture.replica().poll_device(&shelf_target(&peer)).await.is_ok());
}

#[tokio::test]
async fn a_known_shelf_is_probed_with_one_request() {
    let peer = serve(&shelf(PowerControl::Chassis)).await;
    let (fixture, target) = (DatacenterFixture::new(), shelf_target(&peer));
    let replica = fixture.replica();
    let observed = replica.probe(&target).await.unwrap();
    let reported: Vec<_> = observed.iter().map(|one| (one.condition, one.status)).collect();
    assert_eq!(reported, [(ConditionType::BmcReachable, true)]);
    let first = peer.calls().len();
    for probe in 1..=3 {
        assert_eq!(replica.poll_device(&target).await.unwrap().power, Some(DesiredPower::On));
        assert_eq!(peer.calls().len(), first + probe);
    }
    let gone = target_behind(TargetKind::PowerShelf, &Peer::start(|_| Response::HangUp).await);
    assert_eq!(replica.poll_device(&gone).await.unwrap_err().code, FaultCode::BmcUnreachable);
}
