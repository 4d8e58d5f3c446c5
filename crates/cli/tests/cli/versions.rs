//! Creating, updating and deleting by the rules that hold for every kind: a known name is not
//! created again, an unknown one is not updated, and nothing is changed from an old version.

use crate::api::{TestServer, field_of, machine, on_both, refused};
use crate::fleet::{Channel, Clients, channel as connect};
use proto::FieldMask;
use proto::v1;
use proto::v1::credential_secret::Kind;
use proto::v1::credential_service_client::CredentialServiceClient;
use proto::v1::firmware_service_client::FirmwareServiceClient;
use proto::v1::power_shelf_service_client::PowerShelfServiceClient;
use proto::v1::switch_service_client::SwitchServiceClient;
use std::fmt::Debug;
use tonic::Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound};
use tonic::{Response, Status};
use tonic_types::StatusExt;

/// A version that no object of these tests reaches.
const OTHER: i64 = 99_999;

/// Checks the one refusal of a request that was made from another version.
#[track_caller]
fn stale<T: Debug>(answer: Result<Response<T>, Status>, next: &str) {
    let words = ["is at version", &format!("this change was made from version {OTHER}"), next];
    let status = refused(answer, FailedPrecondition, &words);
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().reason.as_str(), "VERSION_MOVED");
    assert_eq!(details.precondition_failure().unwrap().violations[0].r#type, "VERSION_MOVED");
}

#[track_caller]
fn invalid<T: Debug>(answer: Result<Response<T>, Status>, field: &str) {
    assert_eq!(field_of(&refused(answer, InvalidArgument, &[])), field);
}

async fn channel(world: &TestServer) -> Channel {
    connect(&world.server.url()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_changed_from_another_version() {
    on_both("zero", from_another_version).await;
}

async fn from_another_version(world: &TestServer, mut api: Clients) {
    let channel = channel(world).await;
    api.register("m-1").await;
    let update = v1::UpdateMachineRequest {
        machine: Some(machine("m-1")),
        expected_version: OTHER,
        update_mask: None,
        ..Default::default()
    };
    stale(api.machines.update_machine(update).await, "farrier get m-1");
    let delete = v1::DeleteMachineRequest {
        machine_id: "m-1".into(),
        expected_version: OTHER,
        dry_run: false,
        gate_override: None,
    };
    stale(api.machines.delete_machine(delete).await, "farrier get m-1");

    let rack = v1::Rack { rack_id: "rack-1".into(), ..Default::default() };
    let create = v1::CreateRackRequest { rack: Some(rack.clone()), dry_run: false };
    api.racks.create_rack(create).await.unwrap();
    let update = v1::UpdateRackRequest {
        rack: Some(rack),
        expected_version: OTHER,
        dry_run: false,
        update_mask: None,
    };
    stale(api.racks.update_rack(update).await, "farrier rack get rack-1");
    let delete = v1::DeleteRackRequest {
        rack_id: "rack-1".into(),
        expected_version: OTHER,
        ..Default::default()
    };
    stale(api.racks.delete_rack(delete.clone()).await, "farrier rack get rack-1");
    api.racks.delete_rack(v1::DeleteRackRequest { expected_version: 0, ..delete }).await.unwrap();

    let mut switches = SwitchServiceClient::new(channel.clone());
    let spec = Some(v1::DeviceSpec { provider: "sim".into(), ..Default::default() });
    let switch_id = "sw-1".into();
    let switch = Some(v1::Switch { switch_id, spec: spec.clone(), ..Default::default() });
    let register = v1::RegisterSwitchRequest { switch: switch.clone(), dry_run: false };
    switches.register_switch(register).await.unwrap();
    let update = v1::UpdateSwitchRequest {
        switch,
        expected_version: OTHER,
        dry_run: false,
        update_mask: None,
    };
    stale(switches.update_switch(update).await, "farrier switch get sw-1");
    let delete = v1::DeleteSwitchRequest {
        switch_id: "sw-1".into(),
        expected_version: OTHER,
        dry_run: false,
    };
    stale(switches.delete_switch(delete).await, "farrier switch get sw-1");

    let mut shelves = PowerShelfServiceClient::new(channel);
    let power_shelf_id = "ps-1".into();
    let power_shelf = Some(v1::PowerShelf { power_shelf_id, spec, ..Default::default() });
    let register =
        v1::RegisterPowerShelfRequest { power_shelf: power_shelf.clone(), dry_run: false };
    shelves.register_power_shelf(register).await.unwrap();
    let update = v1::UpdatePowerShelfRequest {
        power_shelf,
        expected_version: OTHER,
        dry_run: false,
        update_mask: None,
    };
    stale(shelves.update_power_shelf(update).await, "farrier power-shelf get ps-1");
    let delete = v1::DeletePowerShelfRequest {
        power_shelf_id: "ps-1".into(),
        expected_version: OTHER,
        dry_run: false,
    };
    stale(shelves.delete_power_shelf(delete).await, "farrier power-shelf get ps-1");
}

fn secret(password: &str) -> Option<v1::CredentialSecret> {
    let kind = Kind::Password(v1::Password { user: "root".into(), password: password.into() });
    Some(v1::CredentialSecret { kind: Some(kind) })
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_created_updated_and_deleted() {
    on_both("zero", written_credentials).await;
}

async fn written_credentials(world: &TestServer, _api: Clients) {
    let mut api = CredentialServiceClient::new(channel(world).await);
    let create =
        |secret| v1::CreateCredentialRequest { name: "bmc".into(), secret, ..Default::default() };
    let update = |name: &str, expected_version, allow_missing| v1::UpdateCredentialRequest {
        name: name.into(),
        secret: secret("new"),
        expected_version,
        allow_missing,
        ..Default::default()
    };
    invalid(api.create_credential(create(None)).await, "secret");
    let wrong = api.create_credential(create(secret(""))).await;
    invalid(wrong, "secret.password.password");
    let created = api.create_credential(create(secret("old"))).await.unwrap().into_inner();
    let again = api.create_credential(create(secret("old"))).await;
    refused(again, AlreadyExists, &["the credential bmc exists", "farrier credential update bmc"]);
    let get = |name: &str| v1::GetCredentialRequest { name: name.into() };
    assert_eq!(api.get_credential(get("bmc")).await.unwrap().into_inner(), created);
    refused(api.get_credential(get("none")).await, NotFound, &["none", "farrier credential list"]);

    stale(api.update_credential(update("bmc", OTHER, false)).await, "farrier credential get bmc");
    let updated = api.update_credential(update("bmc", created.version, false)).await.unwrap();
    assert_eq!(updated.get_ref().version, created.version + 1);
    for expected_version in [0, 1] {
        let unknown = api.update_credential(update("other", expected_version, false)).await;
        refused(unknown, NotFound, &["other", "farrier credential list"]);
    }
    let unknown = api.update_credential(update("other", 1, true)).await;
    refused(unknown, NotFound, &["other", "farrier credential list"]);
    let set = api.update_credential(update("other", 0, true)).await.unwrap().into_inner();
    assert_eq!((set.name.as_str(), set.version), ("other", 1));

    let delete = |expected_version| v1::DeleteCredentialRequest {
        name: "bmc".into(),
        expected_version,
        ..Default::default()
    };
    stale(api.delete_credential(delete(OTHER)).await, "farrier credential get bmc");
    api.delete_credential(delete(updated.get_ref().version)).await.unwrap();
    refused(api.delete_credential(delete(0)).await, NotFound, &["bmc"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn identities_are_created_updated_and_deleted() {
    on_both("zero", written_identities).await;
}

async fn written_identities(world: &TestServer, mut all: Clients) {
    let mut api = CredentialServiceClient::new(channel(world).await);
    let (peer, old, new) = ("https://10.0.0.5", "ab".repeat(32), "cd".repeat(32));
    let create = |identity: &str| v1::CreateIdentityRequest {
        peer: peer.into(),
        identity: identity.into(),
        ..Default::default()
    };
    let update = |identity: &str, expected_version, allow_missing| v1::UpdateIdentityRequest {
        peer: peer.into(),
        identity: identity.into(),
        allow_missing,
        expected_version,
        ..Default::default()
    };
    refused(api.update_identity(update(&old, 0, false)).await, NotFound, &[peer]);
    refused(api.update_identity(update(&old, 1, true)).await, NotFound, &[peer]);
    let first = api.create_identity(create(&old)).await.unwrap().into_inner();
    assert_eq!(first.version, 1);
    let again = api.create_identity(create(&old)).await.unwrap().into_inner();
    assert_eq!(again, first, "a repetition returns the stored pin");
    let other = api.create_identity(create(&new)).await;
    let words = [peer, old.as_str(), "farrier trust update https://10.0.0.5"];
    refused(other, AlreadyExists, &words);
    let next = "farrier trust get https://10.0.0.5";
    stale(api.update_identity(update(&new, OTHER, false)).await, next);
    let updated = api.update_identity(update(&new, 1, false)).await.unwrap().into_inner();
    assert!(updated.identity.ends_with(&new), "{updated:?}");
    assert_eq!(updated.version, 2);
    let same = api.update_identity(update(&new, 0, false)).await.unwrap().into_inner();
    assert_eq!(same, updated, "the same identity changes nothing");
    let get = || v1::GetIdentityRequest { peer: peer.into() };
    assert_eq!(api.get_identity(get()).await.unwrap().into_inner(), updated);
    let delete = |expected_version| v1::DeleteIdentityRequest {
        peer: peer.into(),
        expected_version,
        ..Default::default()
    };
    stale(api.delete_identity(delete(OTHER)).await, next);
    assert_eq!(api.delete_identity(delete(2)).await.unwrap().into_inner(), updated);
    refused(api.delete_identity(delete(0)).await, NotFound, &[peer, "farrier trust list"]);
    refused(api.get_identity(get()).await, NotFound, &[peer, "farrier trust list"]);
    let set = api.update_identity(update(&old, 0, true)).await.unwrap().into_inner();
    assert_eq!((&set.identity, set.version), (&first.identity, 4));
    invalid(api.create_identity(create("short")).await, "identity");
    let history = all.history(&format!("identity/{peer}")).await;
    let entries: Vec<_> = history.iter().map(|one| (one.version, one.state.as_str())).collect();
    assert_eq!(entries, [(1, "SET"), (2, "SET"), (3, "DELETED"), (4, "SET")]);
    assert!(history[1].message.ends_with(&new) && history[1].actor == "admin", "{history:?}");
}

fn record(id: &str) -> v1::Firmware {
    let component = v1::FirmwareComponent {
        device_type: v1::TargetKind::Switch.into(),
        name: "BMC".into(),
        version: "2.1".into(),
        url: "https://files.example/x".into(),
        sha256: "ab".repeat(32),
    };
    v1::Firmware {
        firmware_id: id.into(),
        hardware_type: "nvl72".into(),
        components: vec![component],
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn firmware_changes_only_in_its_flags() {
    on_both("zero", updated_firmware).await;
}

async fn updated_firmware(world: &TestServer, _api: Clients) {
    let mut api = FirmwareServiceClient::new(channel(world).await);
    for id in ["fw-1", "fw-2"] {
        let create = v1::CreateFirmwareRequest { firmware: Some(record(id)), dry_run: false };
        let created = api.create_firmware(create).await.unwrap().into_inner();
        assert_eq!((created.version, created.is_default), (1, false));
    }
    let update = |firmware: v1::Firmware, mask: &[&str]| v1::UpdateFirmwareRequest {
        firmware: Some(firmware),
        update_mask: Some(FieldMask { paths: mask.iter().map(|path| path.to_string()).collect() }),
        ..Default::default()
    };
    let default = |id: &str| v1::Firmware { is_default: true, ..record(id) };
    let available = |is| v1::Firmware { available: Some(is), ..record("fw-1") };
    invalid(api.update_firmware(v1::UpdateFirmwareRequest::default()).await, "firmware");
    for (request, field) in [
        (update(record("fw-1"), &[]), "firmware"),
        (update(v1::Firmware { firmware_id: "/".into(), ..default("") }, &[]), {
            "firmware.firmware_id"
        }),
        (update(default("fw-1"), &["hardware_type"]), "update_mask"),
        (update(default("fw-1"), &["is_default", "created_at"]), "update_mask"),
        (update(record("fw-1"), &["is_default"]), "firmware.is_default"),
        (update(record("fw-1"), &["available"]), "firmware.available"),
        (update(v1::Firmware { description: "new".into(), ..default("fw-1") }, &[]), {
            "firmware.description"
        }),
    ] {
        invalid(api.update_firmware(request).await, field);
    }
    let unknown = api.update_firmware(update(default("fw-9"), &[])).await;
    refused(unknown, NotFound, &["fw-9", "farrier firmware list"]);

    // The default moves in one transaction, and both records get a new version.
    let one = api.update_firmware(update(default("fw-1"), &[])).await.unwrap().into_inner();
    assert_eq!((one.is_default, one.available, one.version), (true, Some(true), 2));
    let two = update(default("fw-2"), &["is_default"]);
    let dry = v1::UpdateFirmwareRequest { dry_run: true, ..two.clone() };
    assert!(api.update_firmware(dry).await.unwrap().into_inner().is_default);
    api.update_firmware(two).await.unwrap();
    let get = v1::GetFirmwareRequest { firmware_id: "fw-1".into() };
    let one = api.get_firmware(get.clone()).await.unwrap().into_inner();
    assert_eq!((one.is_default, one.version), (false, 3));

    let next = "farrier firmware get fw-1";
    let late = v1::UpdateFirmwareRequest {
        expected_version: OTHER,
        ..update(available(false), &["available"])
    };
    stale(api.update_firmware(late.clone()).await, next);
    let current = v1::UpdateFirmwareRequest { expected_version: one.version, ..late };
    let off = api.update_firmware(current).await.unwrap().into_inner();
    assert_eq!((off.available, off.version), (Some(false), 4));
    // A repetition changes nothing.
    let same = api.update_firmware(update(available(false), &[])).await.unwrap().into_inner();
    assert_eq!(same, off);
    let delete = |expected_version| v1::DeleteFirmwareRequest {
        firmware_id: "fw-1".into(),
        expected_version,
        dry_run: false,
    };
    stale(api.delete_firmware(delete(OTHER)).await, next);
    api.delete_firmware(delete(off.version)).await.unwrap();
    refused(api.get_firmware(get).await, NotFound, &["fw-1"]);
}
