//! MachineService.

use super::convert::{
    expected_version, initiator, machine, machine_event, machine_from, machine_with_hardware,
    operation, overrides_from, who,
};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::stream::{self, Streaming};
use super::update;
use super::{Answer, GrpcServices};
use engine::admission::StartRequest;
use model::filter::FilterSubject;
use model::gate::MACHINE_RUN;
use model::id::{MachineId, PlanId, RunId};
use model::order::Selection;
use model::plan::{IMAGE_REF, Maintenance, Params, RunType};
use model::refusal::Refusal;
use model::run::actions::Action;
use model::target::TargetId;
use model::text;
use proto::v1;
use tonic::{Request, Response};

/// A customer's request, with the type of the run that serves it.
struct OperationRequest {
    run_type: RunType,
    /// None: the default plan of the type.
    plan_id: Option<PlanId>,
    params: Params,
    gate_override: Option<v1::GateOverride>,
}

impl OperationRequest {
    fn of_type(run_type: RunType, gate_override: Option<v1::GateOverride>) -> Self {
        Self { run_type, plan_id: None, params: Params::new(), gate_override }
    }

    fn in_maintenance_plan(self, way: Option<Maintenance>) -> Self {
        Self { plan_id: way.map(Maintenance::plan_id), ..self }
    }
}

impl GrpcServices {
    /// Starts the run of a reboot, a reimage, or entering or leaving maintenance.
    async fn start_operation(
        &self,
        desired: OperationRequest,
        machine_id: &str,
        request_id: &str,
        initiator: String,
    ) -> Answer<v1::Operation> {
        let OperationRequest { run_type, plan_id, params, gate_override } = desired;
        let start = StartRequest {
            machine_id: MachineId::parse(machine_id).or_status()?,
            request_id: text::check_request_id(request_id).or_status()?,
            run_type,
            plan_id,
            params,
            overrides: overrides_from(gate_override, MACHINE_RUN).or_status()?,
            initiator,
        };
        let started = self.engine.runs().start(start).await.or_status()?;
        Ok(Response::new(operation(&started.run)))
    }
}

#[tonic::async_trait]
impl v1::machine_service_server::MachineService for GrpcServices {
    type WatchMachinesStream = Streaming<v1::MachineEvent>;

    async fn register_machine(
        &self,
        request: Request<v1::RegisterMachineRequest>,
    ) -> Answer<v1::Machine> {
        let actor = initiator(request.metadata());
        let described = machine_from(request.into_inner().machine).or_status()?;
        let done = self.engine.machines().register(described, actor).await.or_status()?;
        Ok(Response::new(machine(done)))
    }

    async fn get_machine(&self, request: Request<v1::GetMachineRequest>) -> Answer<v1::Machine> {
        let id = MachineId::parse(&request.get_ref().machine_id).or_status()?;
        let found = self.engine.machines().get(&id).await.or_status()?;
        let health = self.health_of(&TargetId::from(&id), &found.health).await?;
        let hardware = self.engine.machines().hardware(vec![id.clone()]).await.or_status()?;
        let mut shown = machine_with_hardware(found, hardware.get(&id));
        if let Some(status) = &mut shown.status {
            status.health = health;
        }
        Ok(Response::new(shown))
    }

    async fn list_machines(
        &self,
        request: Request<v1::ListMachinesRequest>,
    ) -> Answer<v1::ListMachinesResponse> {
        let requested = request.into_inner();
        let v1::ListMachinesRequest { filter, page_size, page_token, order_by } = requested;
        let selected = Selection::parse(&filter, &order_by, FilterSubject::Machine).or_status()?;
        let scope = scope(&filter, selected.order);
        let page = Page::new(List::Machines, &scope, page_size, &page_token).or_status()?;
        let found = self.engine.machines().list(selected, page.from.clone(), page.size).await;
        let found = found.or_status()?;
        let ids = found.machines.iter().map(|machine| machine.id.clone()).collect();
        let hardware = self.engine.machines().hardware(ids).await.or_status()?;
        let shown = found.machines.into_iter().map(|machine| {
            let recorded = hardware.get(&machine.id);
            machine_with_hardware(machine, recorded)
        });
        Ok(Response::new(v1::ListMachinesResponse {
            machines: shown.collect(),
            next_page_token: found.next.map(|last| page.token(&last)).unwrap_or_default(),
            unreadable_rows: unreadable_rows(&found.unreadable),
        }))
    }

    async fn update_machine(
        &self,
        request: Request<v1::UpdateMachineRequest>,
    ) -> Answer<v1::Machine> {
        let actor = initiator(request.metadata());
        let v1::UpdateMachineRequest { machine: requested, expected_version: version, update_mask } =
            request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("machine")))?;
        let field = "machine.machine_id";
        let id = MachineId::parse_field(&requested.machine_id, field).or_status()?;
        let stored = |stored: &model::machine::Machine| machine(stored.clone());
        let change =
            update::change(requested, update_mask, &["labels", "spec"], stored, machine_from);
        let version = expected_version(version);
        let done = self.engine.machines().update(id, change, version, actor).await.or_status()?;
        Ok(Response::new(machine(done)))
    }

    async fn delete_machine(
        &self,
        request: Request<v1::DeleteMachineRequest>,
    ) -> Answer<v1::Machine> {
        let actor = initiator(request.metadata());
        let requested = request.into_inner();
        let id = MachineId::parse(&requested.machine_id).or_status()?;
        let version = expected_version(requested.expected_version);
        let engine = self.engine.with_dry_run(requested.dry_run);
        let deleted = engine.machines().delete(id, version, actor).await.or_status()?;
        Ok(Response::new(machine(deleted)))
    }

    async fn watch_machines(
        &self,
        request: Request<v1::WatchMachinesRequest>,
    ) -> Answer<Self::WatchMachinesStream> {
        let requested = request.into_inner();
        let watch = self.open_watch(&requested.filter, &requested.cursor).await?;
        Ok(stream::watching(watch, requested.bookmark, machine_event))
    }

    async fn reboot_machine(
        &self,
        request: Request<v1::RebootMachineRequest>,
    ) -> Answer<v1::Operation> {
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let desired = OperationRequest::of_type(RunType::Reboot, requested.gate_override);
        self.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn reimage_machine(
        &self,
        request: Request<v1::ReimageMachineRequest>,
    ) -> Answer<v1::Operation> {
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let params = Params::from([(IMAGE_REF.to_string(), requested.image_ref)]);
        let reimage = OperationRequest::of_type(RunType::Reimage, requested.gate_override);
        let desired = OperationRequest { params, ..reimage };
        self.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn enter_maintenance(
        &self,
        request: Request<v1::EnterMaintenanceRequest>,
    ) -> Answer<v1::Operation> {
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let way = requested.drain.then_some(Maintenance::EnterDraining);
        let run_type = RunType::EnterMaintenance;
        let desired = OperationRequest::of_type(run_type, requested.gate_override);
        let desired = desired.in_maintenance_plan(way);
        self.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn exit_maintenance(
        &self,
        request: Request<v1::ExitMaintenanceRequest>,
    ) -> Answer<v1::Operation> {
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let way = requested.uncordon.then_some(Maintenance::ExitUncordoning);
        let run_type = RunType::ExitMaintenance;
        let desired = OperationRequest::of_type(run_type, requested.gate_override);
        let desired = desired.in_maintenance_plan(way);
        self.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn cancel_operation(
        &self,
        request: Request<v1::CancelOperationRequest>,
    ) -> Answer<v1::Operation> {
        let requested = request.get_ref();
        let id = RunId::parse_field(&requested.operation_id, "operation_id").or_status()?;
        let requester = who(request.metadata(), &requested.reason).or_status()?;
        let engine = self.engine.with_dry_run(requested.dry_run);
        let done = engine.runs().act(id, Action::Cancel, requester).await.or_status()?;
        Ok(Response::new(operation(&done)))
    }
}
