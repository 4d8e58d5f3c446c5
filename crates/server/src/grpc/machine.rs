//! MachineService.

use super::convert::{
    AnsweredRun, drain_options_from, expected_version, initiator, machine, machine_event,
    machine_from, machine_with_hardware, optional_machine_id, overrides_from, request_id_from, who,
};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::{OrStatus, refusal_status, store_error_status};
use super::stream::{self, Streaming};
use super::update;
use super::{Answer, Call, GrpcServices};
use engine::admission::StartRequest;
use engine::machine::batch::{BatchEntry, Registration, RegistrationChange};
use engine::{Change, DescribedMachine};
use model::filter::FilterSubject;
use model::gate::{DELETE_MACHINE, machine_run};
use model::id::{MachineId, PlanId, RunId};
use model::machine::Machine;
use model::order::Selection;
use model::plan::{IMAGE_REF, Maintenance, Params, RunType};
use model::refusal::Refusal;
use model::run::actions::Action;
use model::target::TargetId;
use proto::{FieldMask, v1};
use std::collections::HashSet;
use tonic::{Request, Response};

/// A customer's request, with the type of the run that serves it.
struct OperationRequest {
    run_type: RunType,
    /// None: the default plan of the type.
    plan_id: Option<PlanId>,
    params: Params,
    gate_override: Option<v1::GateOverride>,
    dry_run: bool,
}

impl OperationRequest {
    fn of_type(run_type: RunType, gate_override: Option<v1::GateOverride>, dry_run: bool) -> Self {
        Self { run_type, plan_id: None, params: Params::new(), gate_override, dry_run }
    }

    fn in_maintenance_plan(self, way: Option<Maintenance>) -> Self {
        Self { plan_id: way.map(Maintenance::plan_id), ..self }
    }
}

/// The options of a drain, as parameters of its run.
fn drain_params(drain: bool, options: Option<v1::DrainOptions>) -> Result<Params, Refusal> {
    let Some(options) = options else { return Ok(Params::new()) };
    let options = drain_options_from("drain_options", options)?;
    if !drain && !options.is_default() {
        let instead = "set drain too (`--drain`)";
        return Err(Refusal::invalid("drain_options", "is set without drain", instead));
    }
    Ok(options.params())
}

/// The change that a request makes to a stored or a new machine.
fn change(
    requested: v1::Machine,
    mask: Option<FieldMask>,
) -> Change<model::machine::Machine, DescribedMachine> {
    let stored = |stored: &model::machine::Machine| machine(stored.clone());
    update::change(requested, mask, &["labels", "spec"], stored, machine_from)
}

/// A machine of a batch: like RegisterMachine, it clears nothing but labels.
fn batch_entry(requested: v1::Machine) -> BatchEntry {
    let described = machine_from(Some(requested.clone()))?;
    let id = described.id.ok_or_else(|| Refusal::missing("machine.machine_id"))?;
    Ok((id, change(requested, None)))
}

impl Call {
    /// Starts the run of a reboot, a reimage, or entering or leaving maintenance.
    async fn start_operation(
        &self,
        desired: OperationRequest,
        machine_id: &str,
        request_id: &str,
        initiator: String,
    ) -> Answer<v1::Operation> {
        let OperationRequest { run_type, plan_id, params, gate_override, dry_run } = desired;
        let start = StartRequest {
            machine_id: MachineId::parse(machine_id).or_status()?,
            request_id: request_id_from(request_id, dry_run).or_status()?,
            run_type,
            plan_id,
            params,
            overrides: overrides_from(gate_override, machine_run(run_type)).or_status()?,
            initiator,
        };
        let engine = self.engine.with_dry_run(dry_run);
        let started = engine.runs().start(start).await.or_status()?;
        self.operation_answer(&started.run, AnsweredRun { new: started.new, dry_run }).await
    }
}

impl Call {
    /// The answer to a change; in a dry run with what the racks of the machine would do.
    async fn changed_machine(&self, done: Machine, dry_run: bool) -> Answer<v1::Machine> {
        let mut shown = machine(done.clone());
        if let (true, Some(status)) = (dry_run, &mut shown.status) {
            status.would_follow =
                self.engine.machines().predict_racks(vec![done]).await.or_status()?;
        }
        Ok(Response::new(shown))
    }
}

/// The number of machines that one request registers.
const MAX_BATCH: usize = 1_000;

fn check_batch(machines: &[v1::Machine]) -> Result<(), Refusal> {
    if machines.is_empty() || machines.len() > MAX_BATCH {
        let problem = format!("has {} entries", machines.len());
        return Err(Refusal::invalid("machines", problem, format!("give 1 to {MAX_BATCH}")));
    }
    let mut seen = HashSet::new();
    match machines.iter().position(|machine| !seen.insert(&machine.machine_id)) {
        None => Ok(()),
        Some(index) => Err(Refusal::invalid(
            &format!("machines[{index}].machine_id"),
            format!("{:?} occurs twice", machines[index].machine_id),
            "give each machine its own",
        )),
    }
}

fn registration(done: Result<Registration, Refusal>, id: String) -> v1::MachineRegistration {
    match done {
        Ok(Registration { machine: registered, change }) => v1::MachineRegistration {
            machine: Some(machine(registered)),
            created: change == RegistrationChange::Created,
            updated: change == RegistrationChange::Updated,
            problem: String::new(),
        },
        Err(refusal) => v1::MachineRegistration {
            machine: Some(v1::Machine { machine_id: id, ..Default::default() }),
            problem: refusal.message,
            ..Default::default()
        },
    }
}

#[tonic::async_trait]
impl v1::machine_service_server::MachineService for GrpcServices {
    type WatchMachinesStream = Streaming<v1::MachineEvent>;

    async fn register_machine(
        &self,
        request: Request<v1::RegisterMachineRequest>,
    ) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let v1::RegisterMachineRequest { machine: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("machine")))?;
        let id = optional_machine_id(&requested.machine_id).or_status()?;
        let change = change(requested, None);
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.machines().register_changed(id, change, actor).await.or_status()?;
        call.changed_machine(done, dry_run).await
    }

    async fn register_machines(
        &self,
        request: Request<v1::RegisterMachinesRequest>,
    ) -> Answer<v1::RegisterMachinesResponse> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let v1::RegisterMachinesRequest { machines, only_new, dry_run } = request.into_inner();
        check_batch(&machines).or_status()?;
        let ids: Vec<String> = machines.iter().map(|one| one.machine_id.clone()).collect();
        let entries = machines.into_iter().map(batch_entry).collect();
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.machines().register_all(entries, only_new, actor).await.or_status()?;
        let would_follow = match dry_run {
            true => {
                let machines = done.iter().flatten().map(|one| one.machine.clone()).collect();
                call.engine.machines().predict_racks(machines).await.or_status()?
            }
            false => Vec::new(),
        };
        let registrations = done.into_iter().zip(ids).map(|(done, id)| registration(done, id));
        let registrations = registrations.collect();
        Ok(Response::new(v1::RegisterMachinesResponse { registrations, would_follow }))
    }

    async fn get_machine(&self, request: Request<v1::GetMachineRequest>) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let v1::GetMachineRequest { machine_id: text, any_name } = request.get_ref();
        let exact = match MachineId::parse(text) {
            Ok(id) => call.engine.machines().get(&id).await,
            Err(refusal) => Err(refusal.into()),
        };
        let found = match exact {
            Ok(found) => found,
            Err(unknown) if !any_name => return Err(store_error_status(unknown)),
            Err(unknown) => {
                let id = call.engine.find_known_as(text, unknown).await.or_status()?;
                let id = MachineId::parse(&id).or_status()?;
                call.engine.machines().get(&id).await.or_status()?
            }
        };
        let id = found.id.clone();
        let health = call.health_of(&TargetId::from(&id), &found.health).await?;
        let hardware = call.engine.machines().hardware(vec![id.clone()]).await.or_status()?;
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
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let v1::ListMachinesRequest { filter, page_size, page_token, order_by } = requested;
        let selected = Selection::parse(&filter, &order_by, FilterSubject::Machine).or_status()?;
        let scope = scope(&filter, selected.order);
        let page = Page::new(List::Machines, &scope, page_size, &page_token).or_status()?;
        let found = call.engine.machines().list(selected, page.from.clone(), page.size).await;
        let found = found.or_status()?;
        let ids = found.machines.iter().map(|machine| machine.id.clone()).collect();
        let hardware = call.engine.machines().hardware(ids).await.or_status()?;
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
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let v1::UpdateMachineRequest {
            machine: requested,
            expected_version: version,
            update_mask,
            dry_run,
        } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("machine")))?;
        let field = "machine.machine_id";
        let id = MachineId::parse_field(&requested.machine_id, field).or_status()?;
        let change = change(requested, update_mask);
        let version = expected_version(version);
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.machines().update(id, change, version, actor).await.or_status()?;
        call.changed_machine(done, dry_run).await
    }

    async fn delete_machine(
        &self,
        request: Request<v1::DeleteMachineRequest>,
    ) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let requested = request.into_inner();
        let id = MachineId::parse(&requested.machine_id).or_status()?;
        let version = expected_version(requested.expected_version);
        let overrides = overrides_from(requested.gate_override, DELETE_MACHINE).or_status()?;
        let engine = call.engine.with_dry_run(requested.dry_run);
        let deleted = engine.machines().delete(id, version, overrides, actor).await.or_status()?;
        Ok(Response::new(machine(deleted)))
    }

    async fn watch_machines(
        &self,
        request: Request<v1::WatchMachinesRequest>,
    ) -> Answer<Self::WatchMachinesStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let watch = call.open_watch(&requested.filter, &requested.cursor).await?;
        Ok(stream::watching(watch, requested.bookmark, machine_event))
    }

    async fn reboot_machine(
        &self,
        request: Request<v1::RebootMachineRequest>,
    ) -> Answer<v1::Operation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let desired =
            OperationRequest::of_type(RunType::Reboot, requested.gate_override, requested.dry_run);
        call.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn reimage_machine(
        &self,
        request: Request<v1::ReimageMachineRequest>,
    ) -> Answer<v1::Operation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let params = Params::from([(IMAGE_REF.to_string(), requested.image_ref)]);
        let reimage =
            OperationRequest::of_type(RunType::Reimage, requested.gate_override, requested.dry_run);
        let desired = OperationRequest { params, ..reimage };
        call.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn enter_maintenance(
        &self,
        request: Request<v1::EnterMaintenanceRequest>,
    ) -> Answer<v1::Operation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let way = requested.drain.then_some(Maintenance::EnterDraining);
        let run_type = RunType::EnterMaintenance;
        let desired =
            OperationRequest::of_type(run_type, requested.gate_override, requested.dry_run);
        let desired = desired.in_maintenance_plan(way);
        let params = drain_params(requested.drain, requested.drain_options).or_status()?;
        let desired = OperationRequest { params, ..desired };
        call.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn exit_maintenance(
        &self,
        request: Request<v1::ExitMaintenanceRequest>,
    ) -> Answer<v1::Operation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let way = requested.uncordon.then_some(Maintenance::ExitUncordoning);
        let run_type = RunType::ExitMaintenance;
        let desired =
            OperationRequest::of_type(run_type, requested.gate_override, requested.dry_run);
        let desired = desired.in_maintenance_plan(way);
        call.start_operation(desired, &requested.machine_id, &requested.request_id, by).await
    }

    async fn cancel_operation(
        &self,
        request: Request<v1::CancelOperationRequest>,
    ) -> Answer<v1::Operation> {
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        let id = RunId::parse_field(&requested.operation_id, "operation_id").or_status()?;
        let requester = who(request.metadata(), &requested.reason).or_status()?;
        let engine = call.engine.with_dry_run(requested.dry_run);
        let done = engine.runs().act(id, Action::Cancel, requester).await.or_status()?;
        call.operation_answer(&done, AnsweredRun { new: false, dry_run: requested.dry_run }).await
    }
}
