//! The choice of the System on BMCs that show several.

use crate::fake_bmc::{FakeBmc, connect};
use crate::http::Peer;
use model::fault::{Fault, FaultCode};
use providers::http_client::Trust;
use providers::redfish::{Auth, Bmc, BmcAddress, SystemSelector};
use serde_json::json;

/// A chassis with two nodes and the board of one of them.
fn chassis() -> FakeBmc {
    let env = FakeBmc::new();
    env.put_list(
        "/redfish/v1/Systems",
        &["/redfish/v1/Systems/A", "/redfish/v1/Systems/B", "/redfish/v1/Systems/HGX_Baseboard_0"],
    );
    for (id, serial, mac) in [("A", "S-A", "02-00-00-00-00-0A"), ("B", "S-B", "02:00:00:00:00:0b")]
    {
        let path = format!("/redfish/v1/Systems/{id}");
        let nics = format!("{path}/EthernetInterfaces");
        let nic = format!("{nics}/1");
        env.put(
            &path,
            json!({"@odata.id": path, "Id": id, "SerialNumber": serial,
            "SKU": format!("TAG{id}"), "EthernetInterfaces": {"@odata.id": nics}}),
        );
        env.put_list(&nics, &[&nic]);
        env.put(&nic, json!({"MACAddress": mac}));
    }
    let board = "/redfish/v1/Systems/HGX_Baseboard_0";
    env.put(board, json!({"@odata.id": board, "Id": "HGX_Baseboard_0", "SerialNumber": "S-X"}));
    env
}

fn by_serial(serial: &str) -> SystemSelector {
    SystemSelector { serial: Some(serial.into()), ..SystemSelector::default() }
}

fn by_mac(mac: &str) -> SystemSelector {
    SystemSelector {
        macs: vec!["ff:ff:ff:ff:ff:ff".into(), mac.into()],
        ..SystemSelector::default()
    }
}

fn by_id(id: &str) -> SystemSelector {
    SystemSelector { id: Some(id.into()), ..SystemSelector::default() }
}

async fn chosen(peer: &Peer, desired: SystemSelector) -> Result<String, Fault> {
    connect(peer).await.system(&desired).await.map(|system| system.id().to_owned())
}

#[tokio::test]
async fn the_requested_system_is_found() {
    let peer = chassis().serve().await;
    for (desired, id) in [
        (by_id("B"), "B"),
        (by_id("HGX_Baseboard_0"), "HGX_Baseboard_0"),
        (by_serial("s-a"), "A"),
        (by_serial("TAGB"), "B"),
        (by_mac("02:00:00:00:00:0a"), "A"),
        (by_mac("02000000000B"), "B"),
    ] {
        assert_eq!(chosen(&peer, desired.clone()).await.as_deref(), Ok(id), "{desired:?}");
    }
}

#[tokio::test]
async fn the_first_one_is_never_taken() {
    let peer = chassis().serve().await;
    for desired in [
        SystemSelector::default(),
        by_id("C"),
        by_serial("S-C"),
        by_serial("S-X"),
        by_mac("02:00:00:00:00:0c"),
    ] {
        let fault = chosen(&peer, desired.clone()).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::SystemAmbiguous, "{desired:?}: {fault}");
        for there in ["A (serial S-A)", "B (serial S-B)", "HGX_Baseboard_0 (a board)"] {
            assert!(fault.message.contains(there), "{fault}");
        }
    }
}

#[tokio::test]
async fn a_host_and_its_board_are_one_machine() {
    let env = chassis();
    env.put_list(
        "/redfish/v1/Systems",
        &["/redfish/v1/Systems/HGX_Baseboard_0", "/redfish/v1/Systems/A"],
    );
    let peer = env.serve().await;
    assert_eq!(chosen(&peer, SystemSelector::default()).await.as_deref(), Ok("A"));
    let overview = connect(&peer).await.systems().await.unwrap();
    let hosts: Vec<bool> = overview.iter().map(|system| system.host).collect();
    assert_eq!(hosts, [false, true]);
}

#[tokio::test]
async fn an_only_system_of_another_serial_is_another_machine() {
    let peer = FakeBmc::new().serve().await;
    let fault = chosen(&peer, by_serial("S2")).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::SystemAmbiguous, "{fault}");
    assert!(fault.message.contains("1 (serial S1)") && fault.message.contains("S2"), "{fault}");
    let unnamed = FakeBmc::new();
    unnamed.set(crate::fake_bmc::SYSTEM, "/SerialNumber", json!(null));
    let peer = unnamed.serve().await;
    assert_eq!(chosen(&peer, by_serial("S2")).await.as_deref(), Ok("1"));
}

#[tokio::test]
async fn the_path_of_the_endpoint_goes_first() {
    let peer = chassis().serve().await;
    let endpoint = BmcAddress::parse(&format!("{}/redfish/v1/Systems/B", peer.url())).unwrap();
    let settings = crate::fake_bmc::settings(Auth::Basic);
    let bmc = Bmc::connect(endpoint, crate::fake_bmc::login(), Trust::FirstUse(None), settings);
    let system = bmc.await.unwrap().system(&by_id("A")).await.unwrap();
    assert_eq!(system.id(), "B");
}

#[tokio::test]
async fn a_system_that_cannot_be_read_leaves_the_others_in_doubt() {
    let env = chassis();
    env.put_list("/redfish/v1/Systems", &["/redfish/v1/Systems/A", "/redfish/v1/Systems/gone"]);
    let peer = env.serve().await;
    let fault = chosen(&peer, SystemSelector::default()).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::SystemAmbiguous, "{fault}");
    assert!(fault.message.contains("/redfish/v1/Systems/gone"), "{fault}");
}
