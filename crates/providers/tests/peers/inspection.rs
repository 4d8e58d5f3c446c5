//! Inspection of machines: what the datacenter provider reads from a BMC, and for which machine.

use crate::fake_bmc::{FakeBmc, PASSWORD, SYSTEM, settings};
use crate::ipmi_sim::{PASSWORD as IPMI_PASSWORD, Sim, settings as ipmi_settings};
use model::fault::FaultCode;
use model::id::MachineId;
use model::machine::MachineSpec;
use providers::Target;
use providers::datacenter::{Datacenter, Settings};
use providers::inspect::Inspector;
use providers::power::PowerState;
use providers::redfish::{Auth, Health};
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

pub fn store(user: &str, password: &str) -> Arc<InMemoryStateStore> {
    let store = Arc::new(InMemoryStateStore::default());
    let password = password.to_string().into();
    store.set_credential("bmc", Secret::Password { user: user.into(), password });
    store
}

pub fn datacenter(store: &Arc<InMemoryStateStore>) -> Datacenter {
    let settings = Settings {
        bmc_credential: "bmc".into(),
        call_timeout: Duration::from_secs(20),
        redfish: settings(Auth::Auto),
        ipmi: ipmi_settings(),
        ..Settings::default()
    };
    Datacenter::new(Arc::clone(store) as Arc<dyn ProviderStateStore>, settings)
}

fn target(id: &str, bmc_endpoint: String) -> Target {
    let spec = MachineSpec { bmc_endpoint, ..MachineSpec::default() };
    Target { id: model::target::TargetId::from(&MachineId::trusted(id)), spec }
}

/// A BMC with a manager, a log, and an unhealthy fan.
pub fn bmc_with_inventory() -> FakeBmc {
    let (manager, logs) = ("/redfish/v1/Managers/1", "/redfish/v1/Systems/1/LogServices");
    let (chassis, sel) = ("/redfish/v1/Chassis/1", "/redfish/v1/Systems/1/LogServices/SEL");
    let (nics, media) = ("/redfish/v1/Systems/1/Nics", "/redfish/v1/Managers/1/Media");
    let env = FakeBmc::new();
    for (field, value) in [
        ("/PowerState", json!("On")),
        ("/Manufacturer", json!("Acme")),
        ("/Model", json!("Anvil")),
        ("/BiosVersion", json!("1.2")),
        ("/Status", json!({"Health": "Warning"})),
        ("/EthernetInterfaces", json!({"@odata.id": nics})),
        ("/LogServices", json!({"@odata.id": logs})),
        ("/Bios", json!({"@odata.id": "/redfish/v1/Systems/1/Bios"})),
        (
            "/Links",
            json!({"ManagedBy": [{"@odata.id": manager}], "Chassis": [{"@odata.id": chassis}]}),
        ),
    ] {
        env.set(SYSTEM, field, value);
    }
    env.put(
        nics,
        json!({"Members": [{"@odata.id": format!("{nics}/1"), "Id": "1",
            "MACAddress": "02:00:00:00:00:0A"}]}),
    );
    env.put("/redfish/v1/Systems/1/Bios", json!({"Attributes": {"BootMode": "Uefi"}}));
    env.put(manager, json!({"FirmwareVersion": "7.00", "VirtualMedia": {"@odata.id": media}}));
    env.put(media, json!({"Members": [{"@odata.id": format!("{media}/Cd"), "Id": "Cd"}]}));
    env.put(chassis, json!({"Thermal": {"@odata.id": format!("{chassis}/Thermal")}}));
    env.put(
        &format!("{chassis}/Thermal"),
        json!({"Fans": [{"Name": "Fan 1", "Status": {"Health": "Critical"}}, {"Name": "Fan 2"}]}),
    );
    env.put_list(logs, &[sel]);
    env.put(sel, json!({"Entries": {"@odata.id": format!("{sel}/Entries")}}));
    let entry = |day: u8| {
        json!({"Id": day.to_string(), "Created": format!("2026-01-0{day}T10:00:00Z"),
            "Severity": "OK", "Message": format!("Day {day}")})
    };
    env.put(&format!("{sel}/Entries"), json!({"Members": [entry(1), entry(2), entry(3)]}));
    env
}

#[tokio::test]
async fn an_inspection_lists_what_it_skipped() {
    let env = bmc_with_inventory();
    env.set(SYSTEM, "/Memory", json!({"@odata.id": "/redfish/v1/Systems/1/Memory"}));
    let peer = env.serve().await;
    let datacenter = datacenter(&store("root", PASSWORD));
    let observed = datacenter.inspect(&target("m-1", peer.url())).await.unwrap();
    let inventory = &observed.inventory;
    assert_eq!(inventory.vendor.as_deref(), Some("Acme"));
    assert_eq!(inventory.bios_version.as_deref(), Some("1.2"));
    assert_eq!(inventory.bmc_version.as_deref(), Some("7.00"));
    assert_eq!(inventory.nics[0].mac, "02:00:00:00:00:0a");
    assert_eq!(inventory.skipped, ["/redfish/v1/Systems/1/Memory is not there"]);
    assert_eq!(
        (observed.power, observed.boot.as_deref()),
        (Some(PowerState::On), Some("its own boot order, by None (Disabled)"))
    );
    let health = observed.health.unwrap();
    assert_eq!((health.overall, health.components_read), (Health::Warning, 2));
    assert_eq!(health.unhealthy[0].name, "Fan 1");
    assert!(peer.calls().iter().all(|call| call.method == "GET"), "{:?}", peer.calls());
}

#[tokio::test]
async fn an_unreadable_resource_is_skipped() {
    let env = bmc_with_inventory();
    env.set(SYSTEM, "/Boot", json!(null));
    let peer = env.serve().await;
    let datacenter = datacenter(&store("root", PASSWORD));
    let observed = datacenter.inspect(&target("m-1", peer.url())).await.unwrap();
    assert_eq!((observed.boot, observed.power), (None, Some(PowerState::On)));
    let skipped = &observed.inventory.skipped;
    assert!(skipped[0].contains("no boot override"), "{skipped:?}");
    assert_eq!(observed.inventory.vendor.as_deref(), Some("Acme"));
    // A BMC that does not exist is a fault.
    let gone = target("m-1", "http://127.0.0.1:1".into());
    let fault = datacenter.inspect(&gone).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::BmcUnreachable, "{fault}");
    let without = target("m-1", String::new());
    let fault = datacenter.power_now(&without).await.unwrap_err();
    assert!(fault.message.contains("no bmc_endpoint"), "{fault}");
}

#[tokio::test]
async fn the_log_is_read_from_its_newest_entry() {
    let peer = bmc_with_inventory().serve().await;
    let datacenter = datacenter(&store("root", PASSWORD));
    let log = datacenter.event_log(&target("m-1", peer.url()), 2).await.unwrap();
    let days: Vec<&str> = log.iter().map(|entry| entry.message.as_str()).collect();
    assert_eq!(days, ["Day 3", "Day 2"]);
    // A missing log is not an empty log.
    let without = FakeBmc::new().serve().await;
    let fault = datacenter.event_log(&target("m-2", without.url()), 2).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
}

/// The second System behind the BMC, which is off.
pub const OTHER: &str = "/redfish/v1/Systems/2";

pub fn bmc_with_two_systems() -> FakeBmc {
    let env = bmc_with_inventory();
    env.put_list("/redfish/v1/Systems", &[SYSTEM, OTHER]);
    let other =
        json!({"@odata.id": OTHER, "Id": "2", "PowerState": "Off", "SerialNumber": "S2222"});
    env.put(OTHER, other);
    env
}

/// A session is reused for many calls, but never for another machine behind the same BMC.
#[tokio::test]
async fn two_machines_behind_one_bmc_are_never_taken_for_each_other() {
    let peer = bmc_with_two_systems().serve().await;
    let datacenter = datacenter(&store("root", PASSWORD));
    let one = target("one", format!("{}{SYSTEM}", peer.url()));
    let other = target("other", format!("{}{OTHER}", peer.url()));
    let mut by_serial = target("other", peer.url());
    by_serial.spec.serial = "S2222".into();
    let unclear = target("unclear", peer.url());
    for _ in 0..3 {
        assert_eq!(datacenter.power_now(&one).await, Ok(PowerState::On));
        assert_eq!(datacenter.power_now(&other).await, Ok(PowerState::Off));
        assert_eq!(datacenter.power_now(&by_serial).await, Ok(PowerState::Off));
        let fault = datacenter.power_now(&unclear).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::SystemAmbiguous, "{fault}");
    }
}

#[tokio::test]
async fn ipmi_reports_what_it_supports() {
    let entry = "sel_add 0x20 0x02 0 0 0 0x60 0x20 0x00 0x04 0x08 0x07 0x6f 0x01 0xff 0xff\n";
    let Some(sim) = Sim::start_with(entry).await else { return };
    let datacenter = datacenter(&store("admin", IPMI_PASSWORD));
    let target = target("m-1", sim.url());
    let observed = datacenter.inspect(&target).await.unwrap();
    assert_eq!(observed.power, Some(PowerState::Off));
    // The simulator reports its own boot order as the disk.
    assert_eq!(observed.boot.as_deref(), Some("the disk"));
    assert!(observed.inventory.vendor.unwrap().starts_with("manufacturer "));
    assert!(observed.inventory.uuid.is_some() && observed.inventory.bmc_version.is_some());
    assert!(observed.inventory.skipped[0].contains("IPMI does not tell"));
    let log = datacenter.event_log(&target, 5).await.unwrap();
    assert!(log[0].message.starts_with("power supply, sensor 0x07"), "{log:?}");
}
