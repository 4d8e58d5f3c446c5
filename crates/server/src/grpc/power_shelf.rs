//! PowerShelfService.

use super::convert::{
    expected_version, gate_override, initiator, known_caller, overrides_from, time, time_fields,
    who,
};
use super::device::{DevicePageRequest, described, labels, power_state, spec, status};
use super::page::{List, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::update;
use super::{Answer, Call, GrpcServices};
use engine::{DescribedDevice, ShelfPreview};
use model::blast_radius::AffectedMachine;
use model::effect::DesiredPower;
use model::filter::FilterSubject;
use model::gate::shelf_power;
use model::id::PowerShelfId;
use model::lifecycle::Lifecycle;
use model::power_shelf::maintenance::{self, PowerChangeRequest, step_name};
use model::power_shelf::{PowerShelf, ShelfPowerRequest};
use model::refusal::Refusal;
use model::text;
use proto::{v1, words};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response};
use v1::PowerShelfMaintenanceOperation as Operation;

/// The response metadata with warnings for the operator.
const WARNING: &str = "farrier-warning";
/// The response metadata with the request id: the documented answer has no fields.
const REQUEST_ID: &str = "farrier-request-id";

#[tonic::async_trait]
impl v1::power_shelf_service_server::PowerShelfService for GrpcServices {
    async fn register_power_shelf(
        &self,
        request: Request<v1::RegisterPowerShelfRequest>,
    ) -> Answer<v1::PowerShelf> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let v1::RegisterPowerShelfRequest { power_shelf, dry_run } = request.into_inner();
        let requested =
            power_shelf.ok_or_else(|| refusal_status(Refusal::missing("power_shelf")))?;
        let id = checked_id(&requested).or_status()?;
        let change = update::change(requested, None, &["labels", "spec"], shelf, shelf_from);
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.devices().register_changed(id, change, actor).await.or_status()?;
        call.shelf_response(&done, dry_run).await
    }

    async fn get_power_shelf(
        &self,
        request: Request<v1::GetPowerShelfRequest>,
    ) -> Answer<v1::PowerShelf> {
        let call = self.call(&request).await?;
        let id = PowerShelfId::parse(&request.get_ref().power_shelf_id).or_status()?;
        let found = call.engine.devices().get(id.as_str()).await.or_status()?;
        let status = Some(call.device_status(&found).await?);
        Ok(Response::new(v1::PowerShelf { status, ..shelf(&found) }))
    }

    async fn list_power_shelves(
        &self,
        request: Request<v1::ListPowerShelvesRequest>,
    ) -> Answer<v1::ListPowerShelvesResponse> {
        let call = self.call(&request).await?;
        let v1::ListPowerShelvesRequest { filter, page_size, page_token, order_by } =
            request.into_inner();
        let desired = DevicePageRequest {
            list: List::PowerShelves,
            subject: FilterSubject::PowerShelf,
            filter: &filter,
            order_by: &order_by,
            size: page_size,
            token: &page_token,
        };
        let (found, next_page_token) = call.device_page(desired).await?;
        let power_shelves = found.records.iter().map(shelf).collect();
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let page = v1::ListPowerShelvesResponse { power_shelves, next_page_token, unreadable_rows };
        Ok(Response::new(page))
    }

    async fn update_power_shelf(
        &self,
        request: Request<v1::UpdatePowerShelfRequest>,
    ) -> Answer<v1::PowerShelf> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let v1::UpdatePowerShelfRequest {
            power_shelf,
            expected_version: version,
            dry_run,
            update_mask,
        } = request.into_inner();
        let requested =
            power_shelf.ok_or_else(|| refusal_status(Refusal::missing("power_shelf")))?;
        let id = PowerShelfId::parse_field(&requested.power_shelf_id, "power_shelf.power_shelf_id")
            .or_status()?;
        let change = update::change(requested, update_mask, &["labels", "spec"], shelf, shelf_from);
        let (engine, version) = (call.engine.with_dry_run(dry_run), expected_version(version));
        let done =
            engine.devices().update(id.as_str(), change, version, actor).await.or_status()?;
        call.shelf_response(&done, dry_run).await
    }

    async fn delete_power_shelf(
        &self,
        request: Request<v1::DeletePowerShelfRequest>,
    ) -> Answer<v1::PowerShelf> {
        let call = self.call(&request).await?;
        let id = PowerShelfId::parse(&request.get_ref().power_shelf_id).or_status()?;
        let requester = who(request.metadata(), "").or_status()?;
        let dry_run = request.get_ref().dry_run;
        let engine = call.engine.with_dry_run(dry_run);
        let version = expected_version(request.get_ref().expected_version);
        let done = engine.devices().delete(id.as_str(), version, requester).await.or_status()?;
        call.shelf_response(&done, dry_run).await
    }

    async fn retry_power_shelf(
        &self,
        request: Request<v1::RetryPowerShelfRequest>,
    ) -> Answer<v1::PowerShelf> {
        let call = self.call(&request).await?;
        let id = PowerShelfId::parse(&request.get_ref().power_shelf_id).or_status()?;
        let requester = who(request.metadata(), "").or_status()?;
        let dry_run = request.get_ref().dry_run;
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.devices().retry(id.as_str(), requester).await.or_status()?;
        call.shelf_response(&done, dry_run).await
    }

    async fn set_power_shelf_maintenance(
        &self,
        request: Request<v1::PowerShelfMaintenanceRequest>,
    ) -> Answer<()> {
        let call = self.call(&request).await?;
        let dry_run = request.get_ref().dry_run.unwrap_or_default();
        let mut requested = maintenance_from(request.metadata(), request.get_ref()).or_status()?;
        let request_id = requested.request_id.take();
        let request_id = request_id.unwrap_or_else(|| call.engine.new_request_id());
        requested.request_id = Some(request_id.clone());
        let foreseen = if dry_run {
            let preview = call.engine.power_shelves().preview(requested).await.or_status()?;
            preview.preview.permitted().or_status()?;
            preview.preview
        } else {
            call.engine.power_shelves().maintain(requested).await.or_status()?
        };
        let mut answer = Response::new(());
        if let Some(value) = request_id.parse().ok().filter(|_| !dry_run) {
            answer.metadata_mut().insert(REQUEST_ID, value);
        }
        for warning in &foreseen.warnings {
            // Metadata values are ASCII. Ids and our sentences are; a warning that is not is left
            // out.
            if let Ok(value) = warning.parse() {
                answer.metadata_mut().append(WARNING, value);
            }
        }
        Ok(answer)
    }

    async fn preview_power_shelf_maintenance(
        &self,
        request: Request<v1::PowerShelfMaintenanceRequest>,
    ) -> Answer<v1::PowerShelfMaintenancePreview> {
        let call = self.call(&request).await?;
        let requested = maintenance_from(request.metadata(), request.get_ref()).or_status()?;
        let operation = requested.operation;
        let observed = call.engine.power_shelves().preview(requested).await.or_status()?;
        Ok(Response::new(preview(observed, operation)))
    }
}

impl Call {
    /// The response of a change; in a dry run with the transitions that would follow.
    async fn shelf_response(&self, done: &PowerShelf, dry_run: bool) -> Answer<v1::PowerShelf> {
        let mut reported = shelf(done);
        if let (true, Some(status)) = (dry_run, &mut reported.status) {
            status.would_follow = self.engine.devices().preview_shelf(done).await.or_status()?;
        }
        Ok(Response::new(reported))
    }
}

pub(super) fn shelf_from(requested: Option<v1::PowerShelf>) -> Result<DescribedDevice, Refusal> {
    let requested = requested.ok_or_else(|| Refusal::missing("power_shelf"))?;
    described::<PowerShelf>(checked_id(&requested)?, requested.labels, requested.spec)
}

/// The id of a described shelf; empty if the server is to generate one.
fn checked_id(requested: &v1::PowerShelf) -> Result<String, Refusal> {
    if !requested.power_shelf_id.is_empty() {
        PowerShelfId::parse_field(&requested.power_shelf_id, "power_shelf.power_shelf_id")?;
    }
    Ok(requested.power_shelf_id.clone())
}

/// Checks everything that does not depend on the stored shelves.
fn maintenance_from(
    metadata: &MetadataMap,
    requested: &v1::PowerShelfMaintenanceRequest,
) -> Result<PowerChangeRequest, Refusal> {
    let operation = match requested.operation() {
        Operation::PowerOn => DesiredPower::On,
        Operation::PowerOff => DesiredPower::Off,
        Operation::Unspecified => {
            let instead = "use POWER_SHELF_MAINTENANCE_OPERATION_POWER_ON or …_POWER_OFF";
            return Err(Refusal::invalid("operation", "is not specified", instead));
        }
    };
    let ids = requested.power_shelf_ids.iter();
    let ids: Result<Vec<PowerShelfId>, Refusal> =
        ids.map(|one| PowerShelfId::parse_field(&one.id, "power_shelf_ids")).collect();
    let reference = requested.reference.as_deref();
    text::check_short("reference", reference.unwrap_or_default())?;
    let request_id = match requested.request_id.as_deref() {
        None | Some("") => None,
        Some(id) => Some(text::check_request_id(id)?),
    };
    Ok(PowerChangeRequest {
        ids: ids?,
        operation,
        initiator: maintenance::initiator(known_caller(metadata).as_deref(), reference),
        overrides: overrides_from(requested.gate_override.clone(), shelf_power(operation))?,
        request_id,
    })
}

fn preview(observed: ShelfPreview, operation: DesiredPower) -> v1::PowerShelfMaintenancePreview {
    let ShelfPreview { preview: foreseen, shelves, time } = observed;
    let (limit_seconds, usual_ms, usual_p95_ms) = time_fields(time.unwrap_or_default());
    let shelves = shelves.into_iter().map(|one| v1::PowerShelfMaintenanceStep {
        state: one
            .shelf
            .as_ref()
            .map_or(0, |shelf| words::value::<v1::DeviceState>(shelf.state_name())),
        power: power_state(one.shelf.as_ref().and_then(|shelf| shelf.facts.power)).into(),
        steps: match foreseen.accepted.contains(&one.id) {
            true => vec![step_name(operation).to_string()],
            false => Vec::new(),
        },
        power_shelf_id: one.id.to_string(),
    });
    let affected = |one: &AffectedMachine| v1::AffectedMachine {
        machine_id: one.machine.to_string(),
        against: one.said().unwrap_or_default(),
    };
    v1::PowerShelfMaintenancePreview {
        shelves: shelves.collect(),
        affected: foreseen.affected.iter().map(affected).collect(),
        fabric_loss: foreseen.fabric_loss.iter().map(affected).collect(),
        refusals: foreseen.refusals.iter().map(|refusal| refusal.message.clone()).collect(),
        warnings: foreseen.warnings,
        rules: foreseen.rules,
        limit_seconds,
        usual_ms,
        usual_p95_ms,
    }
}

fn shelf(shelf: &PowerShelf) -> v1::PowerShelf {
    v1::PowerShelf {
        power_shelf_id: shelf.head.id.clone(),
        labels: labels(shelf),
        spec: Some(spec(shelf)),
        status: Some(status(shelf)),
        maintenance_requested: shelf.maintenance_requested.as_ref().map(requested),
    }
}

fn requested(request: &ShelfPowerRequest) -> v1::PowerShelfMaintenance {
    let operation = match request.operation {
        DesiredPower::On => Operation::PowerOn,
        DesiredPower::Off => Operation::PowerOff,
    };
    v1::PowerShelfMaintenance {
        requested_at: Some(time(request.requested_at)),
        initiator: request.initiator.clone(),
        operation: operation.into(),
        gate_override: gate_override(&request.overrides),
    }
}
