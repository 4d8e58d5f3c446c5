//! Power shelves: services without a System, with power at the chassis, at the outlets or at each
//! supply.

use crate::desk::{Desk, behind, said, work};
use crate::http::{Call, Peer, Said};
use crate::world::World;
use model::condition::ConditionType;
use model::effect::{Answer, DeviceWork, Effect, PowerOffPolicy, PowerTo, Verb};
use model::fault::Code;
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
const ON: Effect = Effect::Power { to: PowerTo::On, power_off: PowerOffPolicy::CONFIGURED };
const OFF: Effect = Effect::Power { to: PowerTo::Off, power_off: PowerOffPolicy::CONFIGURED };

/// The resource that switches the shelf's power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Chassis,
    Supplies,
    Outlets,
}

/// A shelf with everything on, and no System.
pub fn shelf(at: At) -> World {
    let world = World::new();
    world.remove("/redfish/v1/Systems");
    let root = json!({"@odata.id": "/redfish/v1/", "Chassis": {"@odata.id": "/redfish/v1/Chassis"},
        "UpdateService": {"@odata.id": "/redfish/v1/UpdateService"}});
    world.put("/redfish/v1", root);
    world.put_list("/redfish/v1/Chassis", &["/redfish/v1/Chassis/BMC_eeprom", CHASSIS]);
    world.put(
        "/redfish/v1/Chassis/BMC_eeprom",
        json!({"Id": "BMC_eeprom", "ChassisType": "Component"}),
    );
    let manager = "/redfish/v1/Managers/bmc";
    world.put(manager, json!({"@odata.id": manager, "FirmwareVersion": "4.1"}));
    let firmware = "/redfish/v1/UpdateService/FirmwareInventory";
    world.put("/redfish/v1/UpdateService", json!({"FirmwareInventory": {"@odata.id": firmware}}));
    world.put_list(firmware, &["/redfish/v1/UpdateService/FirmwareInventory/PSU_1"]);
    world.put(
        "/redfish/v1/UpdateService/FirmwareInventory/PSU_1",
        json!({"Id": "PSU_1", "Version": "0.9"}),
    );
    let mut chassis = json!({"@odata.id": CHASSIS, "Id": "PowerShelf_0", "ChassisType": "Shelf",
        "Manufacturer": "Delta", "Model": "PF-1333", "SerialNumber": "SH-7",
        "Links": {"ManagedBy": [{"@odata.id": manager}]},
        "PowerSubsystem": {"@odata.id": "/redfish/v1/Chassis/PowerShelf_0/PowerSubsystem"}});
    world.put(
        "/redfish/v1/Chassis/PowerShelf_0/PowerSubsystem",
        json!({"PowerSupplies": {"@odata.id": SUPPLIES}}),
    );
    let supplies: Vec<String> = (1..=3).map(|n| format!("{SUPPLIES}/{n}")).collect();
    world.put_list(SUPPLIES, &supplies.iter().map(String::as_str).collect::<Vec<_>>());
    for path in &supplies {
        let mut supply = json!({"@odata.id": path, "Status": {"State": "Enabled", "Health": "OK"}});
        if at == At::Supplies {
            supply["Actions"] = reset(path, "PowerSupply");
        }
        world.put(path, supply);
    }
    // An empty bay is no supply.
    world.put(&supplies[2], json!({"Status": {"State": "Absent"}}));
    match at {
        At::Supplies => {}
        At::Chassis => {
            chassis["PowerState"] = json!("On");
            chassis["Actions"] = reset(CHASSIS, "Chassis");
        }
        At::Outlets => equip(&world),
    }
    world.put(CHASSIS, chassis);
    world
}

/// The same shelf under PowerEquipment, with two outlets.
fn equip(world: &World) {
    world.set("/redfish/v1", "/PowerEquipment", json!({"@odata.id": "/redfish/v1/PowerEquipment"}));
    let list = "/redfish/v1/PowerEquipment/PowerShelves";
    world.put("/redfish/v1/PowerEquipment", json!({"PowerShelves": {"@odata.id": list}}));
    world.put_list(list, &[SHELF]);
    world.put(
        SHELF,
        json!({"@odata.id": SHELF, "Id": "1", "EquipmentType": "PowerShelf", "SerialNumber": "SH-7",
            "Manufacturer": "Contoso", "Model": "ShelfMaster", "FirmwareVersion": "7.2",
            "Outlets": {"@odata.id": OUTLETS}, "Links": {"Chassis": [{"@odata.id": CHASSIS}]}}),
    );
    let outlets = [format!("{OUTLETS}/A1"), format!("{OUTLETS}/A2")];
    world.put_list(OUTLETS, &[&outlets[0], &outlets[1]]);
    for path in &outlets {
        let target = format!("{path}/Actions/Outlet.PowerControl");
        world.put(
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
pub fn switched(world: &World, call: &Call) -> Option<Said> {
    let (path, action) = call.path.split_once("/Actions/").filter(|_| call.method == "POST")?;
    let body: Value = serde_json::from_str(&call.body).unwrap();
    let word = body.get("ResetType").or(body.get("PowerState")).unwrap().as_str().unwrap();
    let on = word == "On";
    match action {
        "PowerSupply.Reset" => {
            let state = if on { "Enabled" } else { "StandbyOffline" };
            world.set(path, "/Status/State", json!(state));
        }
        _ => world.set(path, "/PowerState", json!(if on { "On" } else { "Off" })),
    }
    Some(Said::status(204, ""))
}

async fn serve(world: &World) -> Peer {
    let inner = world.clone();
    world.serve_but(move |call| switched(&inner, call)).await
}

fn posts(peer: &Peer) -> Vec<String> {
    let calls = peer.calls();
    let posts = calls.iter().filter(|call| call.method == "POST");
    posts.map(|call| format!("{} {}", call.path, call.body)).collect()
}

fn one(peer: &Peer) -> Target {
    behind(TargetKind::PowerShelf, peer)
}

#[tokio::test]
async fn a_shelf_is_switched_off_and_on_wherever_its_power_is() {
    for (at, count) in [(At::Chassis, 1), (At::Supplies, 2), (At::Outlets, 2)] {
        let peer = serve(&shelf(at)).await;
        let facts = Desk::new().replica().survey(&one(&peer)).await.unwrap();
        assert_eq!(facts.power, Some(PowerTo::On), "{at:?}");
        // Nothing to do.
        let desk = Desk::new();
        assert_eq!(
            said(desk.ask(&one(&peer), Verb::Perform, &ON).await),
            "power is on: it was on already"
        );
        assert_eq!(posts(&peer), [""; 0]);
        for (effect, power, words) in [
            (OFF, PowerTo::Off, "power is off: it is off"),
            (ON, PowerTo::On, "power is on: it is on"),
        ] {
            let desk = Desk::new();
            let Ok(Answer::Done(outcome)) = desk.ask(&one(&peer), Verb::Perform, &effect).await
            else {
                panic!("{at:?}")
            };
            assert_eq!(outcome.said, words, "{at:?}");
            assert_eq!(outcome.facts.unwrap().power, Some(power));
            assert!(outcome.evidence.is_empty(), "a shelf has no host");
            let seen = desk.replica().survey(&one(&peer)).await.unwrap();
            assert_eq!(seen.power, Some(power), "{at:?}");
        }
        assert_eq!(posts(&peer).len(), 2 * count, "{at:?}: {:?}", posts(&peer));
    }
}

/// A shelf has no operating system to shut down, whatever policy is configured for machines.
#[tokio::test]
async fn a_configuration_for_machines_is_none_for_shelves() {
    let peer = serve(&shelf(At::Chassis)).await;
    let mut desk = Desk::new();
    desk.settings.power_timeouts.graceful = std::time::Duration::from_secs(60);
    desk.settings.power_timeouts.force = false;
    assert_eq!(said(desk.ask(&one(&peer), Verb::Perform, &OFF).await), "power is off: it is off");
}

#[tokio::test]
async fn a_shelf_that_loses_one_of_its_supplies_half_way_is_gone_on_with() {
    let world = shelf(At::Supplies);
    let (inner, deaf) = (world.clone(), Arc::new(AtomicBool::new(true)));
    let hears = Arc::clone(&deaf);
    let second = format!("{SUPPLIES}/2/Actions/PowerSupply.Reset");
    let peer = world
        .serve_but(move |call| {
            if call.is("POST", &second) && hears.load(Ordering::SeqCst) {
                return Some(Said::status(400, "{}"));
            }
            switched(&inner, call)
        })
        .await;
    let desk = Desk::new();
    let fault = desk.ask(&one(&peer), Verb::Perform, &OFF).await.unwrap_err();
    assert_eq!(fault.code, Code::AnswerLost, "half of the shelf is off: {fault}");
    assert!(fault.said.contains("1 parts were switched"), "{fault}");
    assert_eq!(desk.ask(&one(&peer), Verb::GetStatus, &OFF).await, Ok(Answer::UnderWay));
    deaf.store(false, Ordering::SeqCst);
    assert_eq!(said(desk.ask(&one(&peer), Verb::Follow, &OFF).await), "power is off: it is off");
}

#[tokio::test]
async fn a_shelf_says_what_it_is() {
    for (at, vendor, versions) in [
        (At::Supplies, "Delta", vec![("BMC", "4.1"), ("PSU_1", "0.9")]),
        (At::Outlets, "Contoso", vec![("BMC", "7.2"), ("PSU_1", "0.9")]),
    ] {
        let peer = serve(&shelf(at)).await;
        let answer = Desk::new().ask(&one(&peer), Verb::Perform, &work(DeviceWork::Read)).await;
        let Ok(Answer::Done(outcome)) = answer else { panic!("{answer:?}") };
        let facts = outcome.facts.unwrap();
        assert_eq!((facts.manufacturer.as_str(), facts.serial.as_str()), (vendor, "SH-7"));
        assert_eq!(facts.power, Some(PowerTo::On));
        let found: Vec<(&str, &str)> =
            facts.firmware.iter().map(|(one, two)| (one.as_str(), two.as_str())).collect();
        assert_eq!(found, versions);
    }
}

#[tokio::test]
async fn the_shelf_that_is_meant_is_taken_and_no_other() {
    let world = shelf(At::Chassis);
    let other = "/redfish/v1/Chassis/PowerShelf_1";
    world.put(other, json!({"@odata.id": other, "ChassisType": "Shelf", "SerialNumber": "SH-8", "PowerState": "On"}));
    world.put_list("/redfish/v1/Chassis", &[CHASSIS, other]);
    let peer = serve(&world).await;
    let mut target = one(&peer);
    let fault = Desk::new().ask(&target, Verb::Perform, &OFF).await.unwrap_err();
    assert_eq!(fault.code, Code::SystemAmbiguous, "{fault}");
    assert!(fault.said.contains("SH-7") && fault.said.contains("SH-8"), "{fault}");
    target.spec.serial = "sh-7".into();
    assert_eq!(
        said(Desk::new().ask(&target, Verb::Perform, &OFF).await),
        "power is off: it is off"
    );
    assert_eq!(world.get(other)["PowerState"], json!("On"));
    target.spec.serial = "SH-9".into();
    let fault = Desk::new().ask(&target, Verb::Perform, &OFF).await.unwrap_err();
    assert!(fault.said.contains("None is \"SH-9\""), "{fault}");
}

#[tokio::test]
async fn a_check_names_everything_that_is_wrong_and_a_login_that_may_only_look() {
    let world = shelf(At::Chassis);
    let peer = serve(&world).await;
    let wanted = |psu: &str| BTreeMap::from([("PSU_1".to_owned(), psu.to_owned())]);
    let check = |psu, power| work(DeviceWork::Check { firmware: wanted(psu), power: Some(power) });
    let desk = Desk::new();
    let right = desk.ask(&one(&peer), Verb::Perform, &check("0.9", PowerTo::On)).await;
    assert_eq!(said(right), "reachable, 1 components as expected, power is on");
    let fault =
        desk.ask(&one(&peer), Verb::Perform, &check("1.0", PowerTo::Off)).await.unwrap_err();
    assert_eq!(fault.code, Code::ReadBackDiffers);
    assert_eq!(fault.said, "power is on, and should be off; PSU_1 is at 0.9, and should be at 1.0");

    let configure = work(DeviceWork::Configure);
    let told = said(desk.ask(&one(&peer), Verb::Perform, &configure).await);
    assert!(told.contains("does not tell what it may do"), "{told}");
    let (accounts, telemetry) = ("/redfish/v1/AccountService", "/redfish/v1/TelemetryService");
    world.set("/redfish/v1", "/AccountService", json!({ "@odata.id": accounts }));
    world.set("/redfish/v1", "/TelemetryService", json!({ "@odata.id": telemetry }));
    world.put(accounts, json!({"Accounts": {"@odata.id": "/redfish/v1/AccountService/Accounts"}}));
    world.put_list(
        "/redfish/v1/AccountService/Accounts",
        &["/redfish/v1/AccountService/Accounts/1"],
    );
    let account = "/redfish/v1/AccountService/Accounts/1";
    world.put(account, json!({"UserName": "root", "RoleId": "Administrator"}));
    world.put(telemetry, json!({"@odata.id": telemetry, "ServiceEnabled": false}));
    let seen = desk.ask(&one(&peer), Verb::Observe, &configure).await;
    assert_eq!(seen, Ok(Answer::Differs("its telemetry service is off".into())));
    let told = said(desk.ask(&one(&peer), Verb::Perform, &configure).await);
    assert!(
        told.contains("administers as Administrator") && told.contains("was off and is on now"),
        "{told}"
    );
    assert_eq!(world.get(telemetry)["ServiceEnabled"], json!(true));
    world.set(account, "/RoleId", json!("ReadOnly"));
    let fault = desk.ask(&one(&peer), Verb::Perform, &configure).await.unwrap_err();
    assert_eq!(fault.code, Code::CredentialMissing, "{fault}");
    // That is no refused login, and causes no lockout.
    assert!(desk.replica().survey(&one(&peer)).await.is_ok());
}

#[tokio::test]
async fn a_look_at_a_shelf_is_one_question_once_it_is_known() {
    let peer = serve(&shelf(At::Chassis)).await;
    let (desk, target) = (Desk::new(), one(&peer));
    let replica = desk.replica();
    let seen = replica.probe(&target).await.unwrap();
    let told: Vec<_> = seen.iter().map(|one| (one.condition, one.status)).collect();
    assert_eq!(told, [(ConditionType::BmcReachable, true)]);
    let first = peer.calls().len();
    for look in 1..=3 {
        assert_eq!(replica.survey(&target).await.unwrap().power, Some(PowerTo::On));
        assert_eq!(peer.calls().len(), first + look);
    }
    let gone = behind(TargetKind::PowerShelf, &Peer::start(|_| Said::HangUp).await);
    assert_eq!(replica.survey(&gone).await.unwrap_err().code, Code::BmcUnreachable);
}
