//! Deleting machines: what keeps one, what stays of it, and registering it again.

use crate::api::{TestServer, fault, labelled, machine, on_both, refused, states};
use crate::fleet::Clients;
use proto::words::WireEnum;
use proto::{FieldMask, v1};
use tonic::Code::{FailedPrecondition, NotFound};
use tonic::{Response, Status};
use tonic_types::StatusExt;

impl Clients {
    pub async fn delete(&mut self, id: &str) -> Result<v1::Machine, Status> {
        self.delete_with(v1::DeleteMachineRequest { machine_id: id.into(), ..Default::default() })
            .await
    }

    async fn delete_with(
        &mut self,
        request: v1::DeleteMachineRequest,
    ) -> Result<v1::Machine, Status> {
        self.machines.delete_machine(request).await.map(Response::into_inner)
    }

    async fn try_machine(&mut self, id: &str) -> Result<v1::Machine, Status> {
        let request = v1::GetMachineRequest { machine_id: id.into(), ..Default::default() };
        self.machines.get_machine(request).await.map(Response::into_inner)
    }

    /// The ids of the machines that match a filter.
    async fn found(&mut self, filter: &str) -> Vec<String> {
        let request = v1::ListMachinesRequest { filter: filter.into(), ..Default::default() };
        let list = self.machines.list_machines(request).await.unwrap().into_inner().machines;
        list.into_iter().map(|machine| machine.machine_id).collect()
    }
}

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

fn version(machine: &v1::Machine) -> i64 {
    machine.status.as_ref().unwrap().version
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_used_is_not_deleted() {
    on_both("zero", keeping).await;
}

async fn keeping(_world: &TestServer, mut api: Clients) {
    let check = async |api: &mut Clients, id: &str, expected: &str, words: &[&str]| {
        let before = api.machine(id).await;
        let history = api.history(id).await;
        for dry_run in [true, false] {
            let request =
                v1::DeleteMachineRequest { machine_id: id.into(), dry_run, ..Default::default() };
            let answer = api.delete_with(request).await;
            let status = refused(answer, FailedPrecondition, words);
            assert_eq!(reason(&status), expected, "{}", status.message());
        }
        assert_eq!((api.machine(id).await, api.history(id).await), (before, history));
    };
    refused(api.delete("nobody").await, NotFound, &["nobody", "farrier list"]);

    api.in_maintenance("m-held").await;
    api.fault(fault("m-held", "reboot", "hang", 0)).await;
    let run = api.start("m-held", "REBOOT", "r").await.run_id;
    api.at_step(&run, "reboot").await;
    check(&mut api, "m-held", "MACHINE_BUSY", &[&run, "farrier why"]).await;
    api.cancel(&run).await.unwrap();
    api.finished(&run).await;
    api.delete("m-held").await.unwrap();

    api.in_service("m-serves").await;
    let next = "farrier enter-maintenance m-serves";
    check(&mut api, "m-serves", "WRONG_PHASE", &["READY", next]).await;

    // The rack waits for a second machine, so it starts no operation.
    let expected = Some(v1::RackCounts { machines: 2, ..Default::default() });
    let rack = v1::Rack { rack_id: "rack-1".into(), expected, ..Default::default() };
    let request = v1::CreateRackRequest { rack: Some(rack), dry_run: false };
    api.racks.create_rack(request).await.unwrap();
    let mut placed = machine("m-placed");
    placed.spec.as_mut().unwrap().rack_id = "rack-1".into();
    api.settled(placed).await;
    let next = "farrier machine update m-placed --rack ''";
    check(&mut api, "m-placed", "MACHINE_IN_RACK", &["rack-1", next]).await;
    let update = v1::UpdateMachineRequest {
        machine: Some(machine("m-placed")),
        update_mask: Some(FieldMask { paths: vec!["spec.rack_id".into()] }),
        ..Default::default()
    };
    api.machines.update_machine(update).await.unwrap();
    api.delete("m-placed").await.unwrap();

    let spec = v1::SiteSpec { provider: "sim".into(), ..Default::default() };
    let site = v1::Site { site_id: "site-1".into(), spec: Some(spec), ..Default::default() };
    api.sites
        .create_site(v1::CreateSiteRequest { site: Some(site), ..Default::default() })
        .await
        .unwrap();
    api.settled(machine("m-node")).await;
    let request = v1::OnboardNodeRequest {
        machine_id: "m-node".into(),
        site_id: "site-1".into(),
        request_id: "on".into(),
        ..Default::default()
    };
    let onboarded = api.nodes.onboard_node(request).await.unwrap().into_inner();
    api.finished(&onboarded.run.unwrap().run_id).await;
    let node = onboarded.node.unwrap().node_id;
    let next = format!("farrier node decommission {node} --mode full_decommission");
    check(&mut api, "m-node", "MACHINE_HAS_NODE", &[&node, &next]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_machine_leaves_its_history_and_nothing_else() {
    on_both("zero", deleting).await;
}

async fn deleting(_world: &TestServer, mut api: Clients) {
    api.in_maintenance("m-1").await;
    api.put(labelled("m-1", &[("env", "prod")])).await;
    let done = api.done("m-1", "REBOOT", "r").await;
    let alert =
        v1::HealthAlert { id: "fan".into(), message: "stands still".into(), ..Default::default() };
    let report = v1::MergeHealthReportRequest {
        id: "m-1".into(),
        source: "dcim".into(),
        alerts: vec![alert],
        ..Default::default()
    };
    api.health.merge_health_report(report).await.unwrap();
    let before = api.machine("m-1").await;
    let versions = api.history("m-1").await.len();

    // A decision that was made from an old version is refused; a dry run deletes nothing.
    let request = |expected_version, dry_run| v1::DeleteMachineRequest {
        machine_id: "m-1".into(),
        expected_version,
        dry_run,
        gate_override: None,
    };
    let late = api.delete_with(request(version(&before) - 1, false)).await;
    assert_eq!(reason(&refused(late, FailedPrecondition, &["version"])), "VERSION_MOVED");
    api.delete_with(request(version(&before), true)).await.unwrap();
    assert_eq!(api.machine("m-1").await, before);
    let deleted = api.delete_with(request(version(&before), false)).await.unwrap();
    assert_eq!((&deleted.machine_id, version(&deleted)), (&"m-1".to_string(), version(&before)));

    // Reads name the deletion; lists do not have the machine any more.
    refused(api.try_machine("m-1").await, NotFound, &["m-1 was deleted", "farrier history m-1"]);
    let why = v1::ExplainRequest { id: "m-1".into() };
    refused(api.explain.explain(why).await, NotFound, &["m-1 was deleted", "farrier history m-1"]);
    // Every request has the same text about it.
    let text = ["m-1 was deleted", "farrier history m-1"];
    refused(api.delete("m-1").await, NotFound, &text);
    refused(api.try_start("m-1", "REBOOT", "late").await, NotFound, &text);
    let update = v1::UpdateMachineRequest { machine: Some(machine("m-1")), ..Default::default() };
    refused(api.machines.update_machine(update).await, NotFound, &text);
    let flag =
        v1::SetRmaRequest { machine_id: "m-1".into(), reason: "fan".into(), ..Default::default() };
    refused(api.admin.set_rma(flag).await, NotFound, &text);
    let health = v1::GetHealthRequest { id: "m-1".into() };
    refused(api.health.get_health(health).await, NotFound, &text);
    let rerun = v1::RerunRequest {
        run_id: done.run_id.clone(),
        request_id: "again".into(),
        ..Default::default()
    };
    refused(api.runs.rerun(rerun).await, NotFound, &text);
    assert_eq!(api.found("").await, Vec::<String>::new());
    let alerts = api.health.list_health(v1::ListHealthRequest::default()).await.unwrap();
    assert!(alerts.into_inner().objects.is_empty());

    // Its history and its operations stay.
    let history = api.history("m-1").await;
    assert_eq!(history.len(), versions + 1);
    let last = history.last().unwrap();
    assert_eq!((last.state.as_str(), last.cause().word()), ("removed", "request"));
    assert_eq!(last.message, "deleted");
    assert_eq!(api.run(&done.run_id).await, done);
    assert_eq!(api.list_runs("machine_id=m-1").await.len(), 2);
    assert!(!api.why(&done.run_id).await.headline.is_empty());

    // The same id can be registered again. Only the history continues.
    let again = api.put(machine("m-1")).await;
    assert_eq!(states(&again), ("FACTORY_READY", "EFFECTIVE_STATE_NEW"));
    assert_eq!(version(&again), version(&deleted) + 2);
    assert_eq!(again.status.unwrap().health, None);
    assert_eq!(api.found("labels.env=prod").await, Vec::<String>::new());
    let versions: Vec<i64> = api.history("m-1").await.iter().map(|one| one.version).collect();
    let counted: Vec<i64> = (1..=versions.len() as i64).collect();
    assert_eq!(versions, counted, "the history has no gap");
    let replayed = api.start("m-1", "REBOOT", "r").await;
    assert_eq!(replayed.run_id, done.run_id, "a request id stays used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_and_an_operation_never_both_win() {
    on_both("zero", racing).await;
}

async fn racing(_world: &TestServer, mut api: Clients) {
    for round in 0..10 {
        let id = format!("m-{round}");
        api.settled(machine(&id)).await;
        let (mut one, mut other) = (api.clone(), api.clone());
        let (deleted, started) =
            tokio::join!(one.delete(&id), other.try_start(&id, "ENTER_MAINTENANCE", "r"));
        match (deleted, started) {
            (Ok(_), Err(status)) => {
                assert_eq!(status.code(), NotFound, "{status:?}");
                assert!(api.try_machine(&id).await.is_err());
            }
            (Err(status), Ok(run)) => {
                assert_eq!(reason(&status), "MACHINE_BUSY", "{status:?}");
                assert_eq!(api.finished(&run.run_id).await.machine_id, id);
            }
            // The operation ended before the deletion began.
            (Ok(_), Ok(run)) => {
                assert_eq!(api.run(&run.run_id).await.phase(), v1::run::Phase::Succeeded);
            }
            (Err(deleted), Err(started)) => panic!("{deleted:?} {started:?}"),
        }
    }
}
