//! Bindings with a label selector: outside of it an object does not exist for the caller.

use crate::access::{farrier, token};
use crate::api::{TestServer, labelled, on_both, refused};
use crate::api_http::http_as;
use crate::fleet::{
    Channel, Clients, DatabaseKind, NO_CONTEXTS, Server, TEST_TIMEOUT, channel, channel_with,
};
use crate::nodes::with_agents;
use prost::bytes::{Buf, BufMut};
use proto::calls::{Calls, RequestField};
use proto::v1::access_service_client::AccessServiceClient;
use proto::v1::power_shelf_service_client::PowerShelfServiceClient;
use proto::v1::switch_service_client::SwitchServiceClient;
use proto::v1::{self, WatchChange};
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::time::timeout;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status, Streaming};

const ML: &str = "labels.team=ml";

async fn bind(url: &str, role: &str, subject: &str, selector: &str) -> v1::RoleBinding {
    let request = v1::CreateRoleBindingRequest {
        role: role.into(),
        subject: subject.into(),
        selector: selector.into(),
        ..Default::default()
    };
    let mut access = AccessServiceClient::new(channel(url).await);
    access.create_role_binding(request).await.unwrap().into_inner()
}

/// A user with this role for the objects of this selector only.
async fn limited(env: &TestServer, user: &str, role: &str, selector: &str) -> (Clients, String) {
    let (_, secret) = token(env, user, &[]).await;
    bind(&env.server.url(), role, &format!("user:{user}"), selector).await;
    (Clients::on(channel_with(&env.server.url(), &secret).await), secret)
}

fn get(id: &str) -> v1::GetMachineRequest {
    v1::GetMachineRequest { machine_id: id.into(), ..Default::default() }
}

async fn relabel(api: &mut Clients, id: &str, labels: &[(&str, &str)]) -> Result<(), Status> {
    let request = v1::UpdateMachineRequest {
        machine: Some(v1::Machine { spec: None, ..labelled(id, labels) }),
        ..Default::default()
    };
    api.machines.update_machine(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_operator_acts_on_its_own_machines_only() {
    on_both("zero", acting).await;
}

async fn acting(env: &TestServer, mut admin: Clients) {
    for (id, team) in [("m-1", "ml"), ("m-2", "web")] {
        admin.settled(labelled(id, &[("team", team)])).await;
    }
    let theirs = admin.done("m-2", "ENTER_MAINTENANCE", "shared-id").await;
    let (mut ada, _) = limited(env, "ada", "operator", ML).await;

    let mine = ada.start("m-1", "ENTER_MAINTENANCE", "shared-id").await;
    ada.finished(&mine.run_id).await;
    assert_ne!(mine.run_id, theirs.run_id);
    // A request id of another's operation is free for one's own.
    let listed: Vec<String> =
        ada.list_runs("request_id=shared-id").await.into_iter().map(|run| run.run_id).collect();
    assert_eq!(listed, std::slice::from_ref(&mine.run_id));
    for kind in ["REBOOT", "REPAVE", "ENTER_MAINTENANCE"] {
        for request in ["shared-id", "new"] {
            let hidden = ada.try_start("m-2", kind, request).await;
            refused(hidden, Code::NotFound, &["no machine m-2 is known"]);
        }
    }
    refused(ada.cancel(&theirs.run_id).await, Code::NotFound, &["no operation op-"]);
    // The role has no permission to execute, on no machine.
    refused(ada.try_start("m-1", "UPGRADE", "u").await, Code::PermissionDenied, &["execute"]);

    // The same user may look at everything, and still act only there.
    bind(&env.server.url(), "viewer", "user:ada", "").await;
    assert_eq!(ada.machine("m-2").await.machine_id, "m-2");
    assert_eq!(ada.list_runs("").await.len(), 2);
    let denied = ada.try_start("m-2", "REBOOT", "x").await;
    refused(denied, Code::PermissionDenied, &["operate"]);
    refused(ada.cancel(&theirs.run_id).await, Code::PermissionDenied, &["operate"]);
    ada.done("m-1", "REBOOT", "own").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_of_a_selector_is_a_privilege() {
    on_both("zero", relabelling).await;
}

async fn relabelling(env: &TestServer, mut admin: Clients) {
    for (id, team) in [("m-1", "ml"), ("m-2", "web")] {
        admin.put(labelled(id, &[("team", team), ("env", "dev")])).await;
    }
    let (mut ada, _) = limited(env, "ada", "operator", ML).await;
    relabel(&mut ada, "m-1", &[("team", "ml"), ("env", "prod")]).await.unwrap();
    for labels in [&[("team", "web")][..], &[("env", "prod")], &[]] {
        let out = relabel(&mut ada, "m-1", labels).await;
        refused(out, Code::PermissionDenied, &["labels that it would have"]);
    }
    let taken = relabel(&mut ada, "m-2", &[("team", "ml")]).await;
    refused(taken, Code::NotFound, &["no machine m-2 is known"]);
    // The right to look at it does not help.
    bind(&env.server.url(), "viewer", "user:ada", "").await;
    let taken = relabel(&mut ada, "m-2", &[("team", "ml")]).await;
    refused(taken, Code::PermissionDenied, &["inventory"]);
    // A spec names hardware and credentials, which have no labels.
    let mut described = labelled("m-1", &[("team", "ml")]);
    described.spec.as_mut().unwrap().bmc_endpoint = "10.0.0.9".into();
    let request = v1::UpdateMachineRequest { machine: Some(described), ..Default::default() };
    let moved = ada.machines.update_machine(request).await;
    refused(moved, Code::PermissionDenied, &["more than labels", "whole fleet"]);
    let new = ada.try_put(labelled("m-3", &[("team", "ml")])).await;
    refused(new, Code::PermissionDenied, &["inventory", "whole fleet"]);
    let machine = admin.machine("m-1").await;
    assert_eq!(machine.labels.get("env").map(String::as_str), Some("prod"));
    assert_eq!(admin.machine("m-2").await.labels["team"], "web");
}

async fn next_event(stream: &mut Streaming<v1::MachineEvent>) -> (String, WatchChange, String) {
    let event = timeout(TEST_TIMEOUT, stream.message()).await.unwrap().unwrap().unwrap();
    let change = event.change();
    let machine = event.snapshot.unwrap();
    let team = machine.labels.get("team").cloned().unwrap_or_default();
    (machine.machine_id, change, team)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_what_enters_and_leaves_the_selector() {
    on_both("zero", watching).await;
}

async fn watching(env: &TestServer, mut admin: Clients) {
    for (id, team) in [("m-1", "web"), ("m-2", "ml")] {
        admin.put(labelled(id, &[("team", team)])).await;
    }
    let (mut ada, _) = limited(env, "ada", "viewer", ML).await;
    env.settle().await;
    let watch = ada.machines.watch_machines(v1::WatchMachinesRequest::default()).await;
    let mut watch = watch.unwrap().into_inner();
    assert_eq!(next_event(&mut watch).await, ("m-2".into(), WatchChange::Snapshot, "ml".into()));
    // The watch sends no machine outside the selector, and one that leaves as it was before.
    relabel(&mut admin, "m-1", &[("team", "web"), ("env", "prod")]).await.unwrap();
    relabel(&mut admin, "m-2", &[("team", "web"), ("secret", "of-web")]).await.unwrap();
    let left = ("m-2".into(), WatchChange::NoLongerMatches, "ml".into());
    assert_eq!(next_event(&mut watch).await, left);
    relabel(&mut admin, "m-2", &[("team", "web"), ("more", "of-web")]).await.unwrap();
    relabel(&mut admin, "m-1", &[("team", "ml")]).await.unwrap();
    assert_eq!(next_event(&mut watch).await, ("m-1".into(), WatchChange::Changed, "ml".into()));

    // Another selector ends the stream, which would go on with the old one.
    bind(&env.server.url(), "viewer", "user:ada", "labels.team=web").await;
    let ended = timeout(TEST_TIMEOUT, async {
        loop {
            match watch.message().await {
                // A probe may change the machine meanwhile.
                Ok(Some(event)) => assert_eq!(event.snapshot.unwrap().machine_id, "m-1"),
                Ok(None) => panic!("the stream ended without a status"),
                Err(status) => return status,
            }
        }
    });
    assert_eq!(ended.await.unwrap().code(), Code::Unauthenticated);
    let listed = ada.machines.list_machines(v1::ListMachinesRequest::default()).await.unwrap();
    assert_eq!(listed.into_inner().machines.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_names_labels_only_and_asks_for_one() {
    let (env, _) = TestServer::open("zero").await;
    let mut access = AccessServiceClient::new(channel(&env.server.url()).await);
    for (selector, words) in [
        ("phase=READY", "labels.KEY"),
        ("team=ml", "labels.KEY"),
        ("labels.env!=prod", "asks for no label"),
        ("labels.team=", "expected a value"),
    ] {
        let request = v1::CreateRoleBindingRequest {
            role: "viewer".into(),
            subject: "user:ada".into(),
            selector: selector.into(),
            ..Default::default()
        };
        let status = access.create_role_binding(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{selector}: {status:?}");
        assert!(status.message().contains(words), "{selector}: {status:?}");
        assert!(status.message().contains("selector"), "{selector}: {status:?}");
    }
    // An administrator of a part is no administrator.
    let (mut ada, secret) = limited(&env, "ada", "admin", ML).await;
    let request = v1::SetRmaRequest { machine_id: "m-1".into(), ..Default::default() };
    refused(ada.admin.set_rma(request).await, Code::PermissionDenied, &["whole fleet", ML]);
    let mut access = AccessServiceClient::new(channel_with(&env.server.url(), &secret).await);
    let me = access.get_caller(v1::GetCallerRequest {}).await.unwrap().into_inner();
    assert!(me.permissions.is_empty(), "{me:?}");
    assert_eq!(me.limited_permissions[0].selector, ML);
    let bearer = format!("Authorization: Bearer {secret}");
    for path in ["/", "/metrics", "/machines/m-1", "/operations", "/stream"] {
        let (head, body) =
            http_as(&env, &format!("GET {path}"), &["Host: 127.0.0.1", &bearer], &[]);
        assert!(head.starts_with("http/1.1 403"), "{path}: {head}");
        assert!(body.contains("whole fleet"), "{path}: {body}");
    }
}

/// Requests and answers as bytes, for calls by their names.
#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

/// A message with one text field.
fn with_text(field: &RequestField, value: &str) -> Vec<u8> {
    let tag = u8::try_from(field.number << 3 | 2).unwrap();
    let length = u8::try_from(value.len()).unwrap();
    [&[tag, length], value.as_bytes()].concat()
}

/// Makes a call by its name. The answer to a stream is what it sends up to the message that has
/// `until` in it.
async fn call(
    channel: &Channel,
    name: &str,
    request: Vec<u8>,
    until: &str,
) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = format!("/{name}").parse().unwrap();
    let request = tonic::Request::new(request);
    if !Calls::own().streaming.contains(name) {
        return client.unary(request, path, RawCodec).await.map(tonic::Response::into_inner);
    }
    let mut stream = client.server_streaming(request, path, RawCodec).await?.into_inner();
    let mut sent = Vec::new();
    while !holds(&sent, until) {
        match timeout(TEST_TIMEOUT, stream.message()).await.unwrap()? {
            Some(message) => sent.extend(message),
            None => break,
        }
    }
    Ok(sent)
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// The calls that need a right for the whole fleet, by the reason.
const FLEET_ONLY: &[(&str, &[&str])] = &[
    (
        "who may do what concerns everybody",
        &[
            "AccessService/CreateRole",
            "AccessService/CreateRoleBinding",
            "AccessService/CreateToken",
            "AccessService/DeleteRole",
            "AccessService/DeleteRoleBinding",
            "AccessService/ListRoleBindings",
            "AccessService/ListTokens",
            "AccessService/RevokeToken",
            "AuditService/GetAuditStatus",
            "AuditService/ListAuditEntries",
        ],
    ),
    ("pages of the console show the whole fleet", &["AccessService/CreateSignInLink"]),
    (
        "an approval shows the request of another person, whatever it is about",
        &[
            "ApprovalService/DenyApproval",
            "ApprovalService/GetApproval",
            "ApprovalService/GetApprovalPolicy",
            "ApprovalService/GrantApproval",
            "ApprovalService/ListApprovals",
            "ApprovalService/UpdateApprovalPolicy",
        ],
    ),
    (
        "the server, its replicas, its database and its simulator belong to no team",
        &[
            "AdminService/CheckDatabase",
            "AdminService/ListReplicas",
            "AdminService/PutBackRow",
            "AdminService/RotateSecrets",
            "AdminService/SetAsideRow",
            "SimulatorService/CreateFault",
            "SimulatorService/DeleteFaults",
            "SimulatorService/ListEffects",
            "SimulatorService/ListFaults",
        ],
    ),
    (
        "RMA and Retired are decisions about the inventory",
        &[
            "AdminService/ClearRetired",
            "AdminService/ClearRma",
            "AdminService/SetRetired",
            "AdminService/SetRma",
        ],
    ),
    (
        "credentials, identities and addresses have no labels",
        &[
            "ClusterService/CheckCluster",
            "CredentialService/CreateCredential",
            "CredentialService/CreateIdentity",
            "CredentialService/DeleteCredential",
            "CredentialService/DeleteIdentity",
            "CredentialService/GetCredential",
            "CredentialService/GetIdentity",
            "CredentialService/ListCredentials",
            "CredentialService/ListIdentities",
            "CredentialService/UpdateCredential",
            "CredentialService/UpdateIdentity",
            "HardwareService/Discover",
            "HardwareService/TestBmc",
            "HardwareService/UnlockBmc",
            "MachineService/RegisterMachine",
            "MachineService/RegisterMachines",
        ],
    ),
    (
        "catalogues are shared: all may read them, and a change concerns everybody",
        &[
            "FirmwareService/CreateFirmware",
            "FirmwareService/DeleteFirmware",
            "FirmwareService/UpdateFirmware",
            "ImageService/CreateImage",
            "ImageService/DeleteImage",
            "ImageService/GetNetbootConfig",
            "ImageService/UploadArtifact",
            "PlanService/CreatePlan",
        ],
    ),
    (
        "a notifier sends facts about the whole fleet",
        &[
            "NotifierService/CreateNotifier",
            "NotifierService/DeleteDeadLetters",
            "NotifierService/DeleteNotifier",
            "NotifierService/GetNotifier",
            "NotifierService/ListDeadLetters",
            "NotifierService/ListNotifiers",
            "NotifierService/PauseNotifier",
            "NotifierService/ReplayDeadLetters",
            "NotifierService/ResumeNotifier",
            "NotifierService/TestNotifier",
            "NotifierService/UpdateNotifier",
        ],
    ),
    (
        "racks and sites are shared by teams, and acting on a device concerns others' machines",
        &[
            "ComponentService/GetComponentFirmwareStatus",
            "ComponentService/ListComponentFirmwareVersions",
            "ComponentService/UpdateComponentFirmware",
            "FirmwareService/ListFirmwareHistory",
            "HealthService/ListHealth",
            "NodeService/OnboardNode",
            "PowerShelfService/DeletePowerShelf",
            "PowerShelfService/PreviewPowerShelfMaintenance",
            "PowerShelfService/RegisterPowerShelf",
            "PowerShelfService/RetryPowerShelf",
            "PowerShelfService/SetPowerShelfMaintenance",
            "PowerShelfService/UpdatePowerShelf",
            "RackService/CreateRack",
            "RackService/DeleteRack",
            "RackService/GetRack",
            "RackService/GetRackMaintenanceStatus",
            "RackService/ListRacks",
            "RackService/OnDemandRackMaintenance",
            "RackService/ReprovisionRack",
            "RackService/UpdateRack",
            "RackService/WatchRacks",
            "SiteService/CheckSite",
            "SiteService/CreateSite",
            "SiteService/DeleteSite",
            "SiteService/GetSite",
            "SiteService/ListSites",
            "SiteService/UpdateSite",
            "SwitchService/DeleteSwitch",
            "SwitchService/RegisterSwitch",
            "SwitchService/RetrySwitch",
            "SwitchService/UpdateSwitch",
        ],
    ),
];
/// FLEET_ONLY may only become shorter.
const MOST_FLEET_ONLY: usize = 85;

/// The objects of two teams. Those of the other team sort first in every list.
struct TwoTeams {
    own: [String; 5],
    others: [String; 5],
    /// Ids of objects that do not exist, in the order of the others.
    absent: [String; 5],
}

async fn two_teams(admin: &mut Clients, url: &str) -> TwoTeams {
    let mut switches = SwitchServiceClient::new(channel(url).await);
    let mut shelves = PowerShelfServiceClient::new(channel(url).await);
    let mut ids = Vec::new();
    for (id, team) in [("z-own", "ml"), ("a-other", "web")] {
        let spec = v1::MachineSpec {
            provider: "sim".into(),
            serial: format!("serial-of-{id}"),
            mac_addresses: vec![format!("02:00:00:00:00:{:02x}", id.len())],
            ..Default::default()
        };
        let machine = v1::Machine { spec: Some(spec), ..labelled(id, &[("team", team)]) };
        admin.settled(machine).await;
        ids.push(vec![id.to_string()]);
    }
    // Nodes are listed from the oldest, runs from the newest.
    for at in [1, 0] {
        let machine_id = ids[at][0].clone();
        let request = v1::BootstrapNodeRequest { machine_id, ..Default::default() };
        let bundle = admin.nodes.bootstrap_node(request).await.unwrap().into_inner();
        ids[at].push(bundle.node.unwrap().node_id);
    }
    for one in &mut ids {
        let run = admin.done(&one[0], "ENTER_MAINTENANCE", "r").await;
        one.push(run.run_id);
    }
    for (at, one) in ids.iter_mut().enumerate() {
        let (id, team) = [("sw-z", "ml"), ("sw-a", "web")][at];
        let labels = labelled("", &[("team", team)]).labels;
        let spec = v1::DeviceSpec { provider: "sim".into(), ..Default::default() };
        let switch =
            v1::Switch { switch_id: id.into(), labels, spec: Some(spec), ..Default::default() };
        let request = v1::RegisterSwitchRequest { switch: Some(switch.clone()), dry_run: false };
        switches.register_switch(request).await.unwrap();
        let shelf = v1::PowerShelf {
            power_shelf_id: id.replace("sw", "ps"),
            labels: switch.labels,
            spec: switch.spec,
            ..Default::default()
        };
        one.extend([id.to_string(), shelf.power_shelf_id.clone()]);
        let request =
            v1::RegisterPowerShelfRequest { power_shelf: Some(shelf), ..Default::default() };
        shelves.register_power_shelf(request).await.unwrap();
    }
    let absent = ["b-none", "node-000000000000000000nn", "op-000000000000000000nn", "sw-b", "ps-b"];
    let [own, others] = ids.try_into().unwrap();
    TwoTeams {
        own: own.try_into().unwrap(),
        others: others.try_into().unwrap(),
        absent: absent.map(String::from),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_of_its_selector_a_caller_finds_nothing_in_any_call() {
    let dir = tempfile::tempdir().unwrap();
    let (setup, _) = with_agents(dir.path(), DatabaseKind::Sqlite);
    let server = Server::start(setup);
    let mut admin = server.clients().await;
    let teams = two_teams(&mut admin, &server.url()).await;
    let mut access = AccessServiceClient::new(channel(&server.url()).await);
    let request = v1::CreateTokenRequest { user: "ada".into(), ..Default::default() };
    let secret = access.create_token(request).await.unwrap().into_inner().secret;
    bind(&server.url(), "admin", "user:ada", ML).await;
    let ada = channel_with(&server.url(), &secret).await;

    let calls = Calls::own();
    let (mut denied, mut shown_own) = (Vec::new(), false);
    let mut asked = BTreeMap::new();
    for name in &calls.all {
        let fields = &calls.request_fields[name];
        let named: Vec<_> = fields.iter().filter(|field| field.names_an_object()).collect();
        for field in &named {
            for (other, none) in teams.others.iter().zip(&teams.absent) {
                let answer = async |id: &str| {
                    let answer = call(&ada, name, with_text(field, id), "").await;
                    let status = answer.expect_err(&format!("{name} answers about {id}"));
                    (status.code(), status.message().replace(id, "ID"))
                };
                let (hidden, absent) = (answer(other).await, answer(none).await);
                assert_eq!(hidden, absent, "{name} with {other} as {}", field.name);
                asked.insert((name.as_str(), field.name.as_str()), hidden.0);
            }
        }
        let shown = call(&ada, name, Vec::new(), own_of(&teams, name)).await;
        match shown {
            Err(status) if status.code() == Code::PermissionDenied => {
                assert!(status.message().contains("whole fleet"), "{name}: {status:?}");
                denied.push(name.trim_start_matches("farrier.v1.").to_string());
            }
            // A field is missing, or nothing has an empty name.
            Err(status) => {
                let missing = matches!(status.code(), Code::InvalidArgument | Code::NotFound);
                assert!(missing, "{name}: {status:?}");
            }
            Ok(sent) => {
                assert!(named.is_empty(), "{name} answers without an id");
                for other in &teams.others {
                    assert!(!holds(&sent, other), "{name} shows {other}");
                }
                shown_own |= holds(&sent, &teams.own[3]);
            }
        }
    }
    let found = asked.values().filter(|code| **code == Code::NotFound).count();
    assert!(found > 40, "{asked:#?}");
    let mut expected: Vec<_> =
        FLEET_ONLY.iter().flat_map(|(_, calls)| *calls).map(ToString::to_string).collect();
    expected.sort();
    assert!(expected.len() <= MOST_FLEET_ONLY, "{}", expected.len());
    assert_eq!(denied, expected);
    // Its own objects are there.
    assert!(shown_own, "ListSwitches");
    let mut ada = Clients::on(ada);
    for id in &teams.own[..3] {
        assert_eq!(ada.why(id).await.id, *id);
        assert!(!ada.history(id).await.is_empty(), "{id}");
    }
    for other in &teams.others {
        let request = v1::ExplainRequest { id: other.clone() };
        refused(ada.explain.explain(request).await, Code::NotFound, &["nothing is known as"]);
    }
    by_other_names(&mut ada).await;
    on_devices(&mut admin, &mut ada).await;
}

/// An operation on a device concerns machines of others, whatever labels the device has.
async fn on_devices(admin: &mut Clients, ada: &mut Clients) {
    let started = Instant::now();
    let run = loop {
        match admin.list_runs("target_kind=switch").await.pop() {
            Some(run) => break run,
            None => assert!(started.elapsed() < TEST_TIMEOUT, "no switch was taken in"),
        }
    };
    assert!(ada.list_runs("target_kind=switch").await.is_empty());
    assert_eq!(ada.list_runs("").await.len(), 1);
    let request = v1::GetRunRequest { run_id: run.run_id };
    refused(ada.runs.get_run(request).await, Code::NotFound, &["no operation op-"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_works_for_a_limited_user() {
    let (env, mut admin) = TestServer::open("zero").await;
    for (id, team) in [("m-own", "ml"), ("m-other", "web")] {
        admin.settled(labelled(id, &[("team", team)])).await;
    }
    admin.done("m-other", "ENTER_MAINTENANCE", "r").await;
    let (_, secret) = limited(&env, "ada", "operator", ML).await;
    let variables = [("FARRIER_TOKEN", secret.as_str()), ("FARRIER_CONTEXTS", NO_CONTEXTS)];
    let url = env.server.url();
    let typed = |line: &str| {
        let words = ["--server", &url].into_iter().chain(line.split_whitespace());
        farrier(&words.collect::<Vec<_>>(), &variables)
    };
    for (line, words) in [
        ("whoami", "For labels.team=ml: view, operate"),
        ("list", "m-own"),
        ("get m-own", "m-own"),
        ("enter-maintenance m-own", "SUCCEEDED"),
        ("operation list", "m-own"),
        ("why m-own", "m-own"),
        ("why", ""),
        ("history m-own", "registered"),
        ("plans", "plan-"),
    ] {
        let (code, out, err) = typed(line);
        assert_eq!(code, 0, "{line}: {out}{err}");
        assert!(out.contains(words), "{line}: {out}");
        assert!(!out.contains("m-other") && !err.contains("m-other"), "{line}: {out}{err}");
    }
    for line in ["get m-other", "why m-other", "history m-other", "reboot m-other"] {
        let (code, out, err) = typed(line);
        let absent = typed(&line.replace("m-other", "m-never"));
        assert_ne!(code, 0, "{line}: {out}");
        let hidden = (code, out.replace("m-other", "m-never"), err.replace("m-other", "m-never"));
        assert_eq!(hidden, absent, "{line}");
    }
    let (code, _, err) = typed("rack list");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("whole fleet"), "{err}");
}

/// The own object that a watch shows last.
fn own_of<'a>(teams: &'a TwoTeams, call: &str) -> &'a str {
    match call.rsplit('/').next().unwrap_or_default() {
        "WatchMachines" => &teams.own[0],
        "WatchNodes" => &teams.own[1],
        "WatchRuns" | "WatchOperations" => &teams.own[2],
        _ => "no message has this text",
    }
}

/// A serial number finds one's own machine, and no other.
async fn by_other_names(ada: &mut Clients) {
    let named = |serial: &str| v1::GetMachineRequest { any_name: true, ..get(serial) };
    let own = ada.machines.get_machine(named("serial-of-z-own")).await.unwrap();
    assert_eq!(own.into_inner().machine_id, "z-own");
    for hidden in ["serial-of-a-other", "a-other", "serial-of-nothing"] {
        let answer = ada.machines.get_machine(named(hidden)).await;
        refused(answer, Code::NotFound, &["nothing is known as"]);
    }
}
