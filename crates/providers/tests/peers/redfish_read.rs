//! Reads: what vendors leave out, break, or spread over pages.

use crate::fake_bmc::{FakeBmc, SYSTEM, system};
use providers::redfish::{Health, Redundancy};
use serde_json::{Value, json};

const LIST: &str = "/redfish/v1/Systems/1/Memory";

#[tokio::test]
async fn a_member_that_is_not_there_is_skipped_and_named() {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Memory", json!({"@odata.id": LIST}));
    env.set(SYSTEM, "/Processors", json!({"@odata.id": "/redfish/v1/Systems/1/Processors"}));
    env.put("/redfish/v1/Systems/1/Processors", json!({"Members": null}));
    let modules: Vec<String> = (1..=3).map(|number| format!("{LIST}/{number}")).collect();
    let first: Vec<Value> =
        modules[..2].iter().map(|path| json!({"@odata.id": format!("{path}/")})).collect();
    // The second page has its member inline, and its link names a host that is not the BMC's
    // address.
    let next = format!("https://internal.example{LIST}/page2");
    env.put(LIST, json!({"Members": first, "Members@odata.nextLink": next}));
    env.put(
        &format!("{LIST}/page2"),
        json!({"Members": [
        {"@odata.id": modules[2], "Id": "3", "CapacityMiB": 2048}]}),
    );
    env.put(&modules[0], json!({"Id": "1", "CapacityMiB": "1024"}));
    let peer = env.serve().await;
    let inventory = system(&peer).await.inventory().await.unwrap();
    let sizes: Vec<u64> = inventory.memory.iter().map(|module| module.capacity_mib).collect();
    assert_eq!((sizes.as_slice(), inventory.memory_mib), ([1024, 2048].as_slice(), Some(3072)));
    assert_eq!(inventory.skipped, [format!("{} is not there", modules[1])]);
    assert!(inventory.cpus.is_empty());
}

#[tokio::test]
async fn endless_pages_are_bounded() {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Memory", json!({"@odata.id": LIST}));
    let other = format!("{LIST}/again");
    for (page, next) in [(LIST, other.as_str()), (other.as_str(), LIST)] {
        env.put(page, json!({"Members": [], "Members@odata.nextLink": next}));
    }
    let peer = env.serve().await;
    let inventory = system(&peer).await.inventory().await.unwrap();
    assert_eq!(inventory.skipped.len(), 1);
    assert!(inventory.skipped[0].contains("64 pages"), "{:?}", inventory.skipped);
}

#[tokio::test]
async fn cards_are_found_in_the_chassis_where_the_system_lists_none() {
    let (list, chassis) = ("/redfish/v1/Chassis", "/redfish/v1/Chassis/IO");
    let adapters = format!("{chassis}/NetworkAdapters");
    let functions = format!("{adapters}/CX7/NetworkDeviceFunctions");
    let env = FakeBmc::new();
    env.set("/redfish/v1", "/Chassis", json!({"@odata.id": list}));
    env.put_list(list, &[chassis]);
    env.put(chassis, json!({"NetworkAdapters": {"@odata.id": adapters}}));
    env.put(
        &adapters,
        json!({"Members": [{"@odata.id": format!("{adapters}/CX7"), "Id": "CX7",
        "NetworkDeviceFunctions": {"@odata.id": functions}}]}),
    );
    env.put(
        &functions,
        json!({"Members": [
        {"Id": "0", "Ethernet": {"MACAddress": "02:00:00:00:00:FF",
            "PermanentMACAddress": "02:00:00:00:00:0A"}},
        {"Id": "1", "Ethernet": {"MACAddress": "00:00:00:00:00:00"}},
        {"Id": "2"}]}),
    );
    let peer = env.serve().await;
    let inventory = system(&peer).await.inventory().await.unwrap();
    let nics: Vec<(&str, &str)> =
        inventory.nics.iter().map(|nic| (nic.id.as_str(), nic.mac.as_str())).collect();
    assert_eq!(nics, [("CX7/0", "02:00:00:00:00:0a")]);
}

#[tokio::test]
async fn the_newest_of_a_log_is_read() {
    let (logs, sel) =
        ("/redfish/v1/Systems/1/LogServices", "/redfish/v1/Systems/1/LogServices/SEL");
    let env = FakeBmc::new();
    env.set(SYSTEM, "/LogServices", json!({"@odata.id": logs}));
    env.put_list(logs, &["/redfish/v1/Systems/1/LogServices/PostCodes", sel]);
    env.put("/redfish/v1/Systems/1/LogServices/PostCodes", json!({}));
    env.put(sel, json!({"Entries": {"@odata.id": format!("{sel}/Entries")}}));
    let entries: Vec<Value> = (1..=9)
        .map(|day| {
            json!({"Id": day.to_string(), "Created": format!("2026-01-0{day}T10:00:00+01:00"),
                "Severity": "OK", "Message": format!("Day {day}")})
        })
        .collect();
    env.put(&format!("{sel}/Entries"), json!({ "Members": entries }));
    let peer = env.serve().await;
    let log = system(&peer).await.log(2).await.unwrap();
    let days: Vec<&str> = log.iter().map(|entry| entry.message.as_str()).collect();
    assert_eq!(days, ["Day 9", "Day 8"]);
    assert_eq!(log[0].at.unwrap().as_millis(), 1_767_949_200_000);
    assert_eq!(log[0].log, "SEL");
}

#[tokio::test]
async fn unhealthy_components_are_named() {
    let chassis = "/redfish/v1/Chassis/1";
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Status", json!({"Health": "OK", "HealthRollup": "Warning"}));
    env.set(SYSTEM, "/Links", json!({"Chassis": [{"@odata.id": chassis}]}));
    env.put(
        chassis,
        json!({
        "Thermal": {"@odata.id": format!("{chassis}/Thermal")},
        "Power": {"@odata.id": format!("{chassis}/Power")}}),
    );
    env.put(
        &format!("{chassis}/Thermal"),
        json!({
        "Temperatures": [{"Name": "Inlet", "ReadingCelsius": 61, "Status": {"Health": "Critical"}}],
        "Fans": [
            {"Name": "Fan 1", "Reading": 0, "ReadingUnits": "RPM", "Status": {"Health": "Warning"}},
            {"Name": "Fan 2", "Status": {"Health": "Critical", "State": "Absent"}}],
        "Redundancy": [{"Name": "Fans", "Status": {"Health": "Warning"}}]}),
    );
    let peer = env.serve().await;
    let report = system(&peer).await.health().await.unwrap();
    assert_eq!(report.overall, Health::Warning);
    let bad: Vec<String> = report
        .unhealthy
        .iter()
        .map(|part| format!("{} {} {:?}", part.name, part.health.as_str(), part.reading))
        .collect();
    assert_eq!(bad, ["Inlet Critical Some(\"61 Cel\")", "Fan 1 Warning Some(\"0 RPM\")"]);
    let fans = Redundancy { name: "Fans".into(), health: Health::Warning };
    assert_eq!(report.redundancy, [fans]);
    assert_eq!(report.skipped, [format!("{chassis}/Power is not there")]);
}

#[tokio::test]
async fn sensors_are_read_where_they_come_in_one_answer() {
    let (chassis, sensors) = ("/redfish/v1/Chassis/1", "/redfish/v1/Chassis/1/Sensors");
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Links", json!({"Chassis": [{"@odata.id": chassis}]}));
    env.put(chassis, json!({"Sensors": {"@odata.id": sensors}}));
    env.put(
        &format!("{sensors}?$expand=.($levels=1)"),
        json!({"Members": [
        {"Name": "GPU 3", "Reading": 95, "ReadingUnits": "Cel", "Status": {"Health": "Critical"}},
        {"Name": "GPU 4", "Reading": 51, "Status": {"Health": "OK"}}]}),
    );
    let peer = env.serve().await;
    let unasked = system(&peer).await.health().await.unwrap();
    assert!(unasked.unhealthy.is_empty() && unasked.skipped.is_empty(), "{unasked:?}");
    let expands = json!({"ExpandQuery": {"NoLinks": true}});
    env.set("/redfish/v1", "/ProtocolFeaturesSupported", expands);
    let report = system(&peer).await.health().await.unwrap();
    let bad: Vec<_> =
        report.unhealthy.iter().map(|part| (part.name.as_str(), part.health)).collect();
    assert_eq!(bad, [("GPU 3", Health::Critical)]);
    assert_eq!(report.overall, Health::Unknown);
}

#[tokio::test]
async fn a_log_of_links_is_read_from_its_newest_end() {
    let (manager, logs) = ("/redfish/v1/Managers/1", "/redfish/v1/Managers/1/LogServices");
    let entries = format!("{logs}/Sel/Entries");
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Links", json!({"ManagedBy": [{"@odata.id": manager}]}));
    env.put(manager, json!({"LogServices": {"@odata.id": logs}}));
    env.put_list(logs, &[&format!("{logs}/Sel")]);
    env.put(&format!("{logs}/Sel"), json!({"Entries": {"@odata.id": entries}}));
    let paths: Vec<String> = (1..=30).map(|number| format!("{entries}/{number}")).collect();
    env.put_list(&entries, &paths.iter().map(String::as_str).collect::<Vec<_>>());
    for (number, path) in (1..=30).zip(&paths) {
        env.put(path, json!({"Id": number.to_string(), "Message": format!("Event {number}")}));
    }
    let peer = env.serve().await;
    let log = system(&peer).await.log(3).await.unwrap();
    let message: Vec<&str> = log.iter().map(|entry| entry.message.as_str()).collect();
    assert_eq!(message, ["Event 30", "Event 29", "Event 28"]);
    let read = peer.calls().iter().filter(|call| call.path.contains("/Entries/")).count();
    assert_eq!(read, 3, "the other entries are not read");
}
