//! ComponentService: upgrades compute trays, switches and power shelves with one request.

use super::convert::{initiator, overrides_from, time_fields};
use super::page::{List, Page};
use super::rack::convert::{affected_machine_ids, gate, notes};
use super::status::OrStatus;
use super::{Answer, GrpcServices};
use engine::component::{
    ComponentQuery, ComponentStatus, ComponentVersions, FirmwareUpdate, FirmwareUpdateResult,
    UpdateOutcome,
};
use model::filter::{Filter, FilterSubject};
use model::firmware::FirmwareResolution;
use model::gate::component_firmware;
use model::id::{FirmwareId, MachineId, PowerShelfId, SwitchId};
use model::refusal::Refusal;
use model::run::TimeEstimate;
use model::target::TargetId;
use model::text;
use proto::{v1, words};
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::component_service_server::ComponentService for GrpcServices {
    async fn update_component_firmware(
        &self,
        request: Request<v1::UpdateComponentFirmwareRequest>,
    ) -> Answer<v1::UpdateComponentFirmwareResponse> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let mut update = update_from(request.into_inner(), by).or_status()?;
        if update.request_id.is_empty() && !update.dry_run {
            update.request_id = call.engine.new_request_id();
        }
        let request_id = update.request_id.clone();
        let done = call.engine.components().update(update).await.or_status()?;
        let results = done.into_iter().map(result).collect();
        Ok(Response::new(v1::UpdateComponentFirmwareResponse { results, request_id }))
    }

    async fn get_component_firmware_status(
        &self,
        request: Request<v1::GetComponentFirmwareStatusRequest>,
    ) -> Answer<v1::GetComponentFirmwareStatusResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let targets =
            targets_from(requested.compute_trays, requested.switches, requested.power_shelves);
        let targets = targets.or_status()?;
        let firmware = firmware_from(&requested.target_version).or_status()?;
        let found = call.engine.components().status(&targets, firmware).await.or_status()?;
        let components = found.into_iter().map(status).collect();
        Ok(Response::new(v1::GetComponentFirmwareStatusResponse { components }))
    }

    async fn list_component_firmware_versions(
        &self,
        request: Request<v1::ListComponentFirmwareVersionsRequest>,
    ) -> Answer<v1::ListComponentFirmwareVersionsResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let targets =
            targets_from(requested.compute_trays, requested.switches, requested.power_shelves);
        let targets = targets.or_status()?;
        let filter = Filter::parse(&requested.filter, FilterSubject::ComponentFirmware);
        let filter = filter.or_status()?;
        let keys: Vec<String> = targets.iter().map(TargetId::key).collect();
        let stamp = format!("{} {}", keys.join(","), requested.filter);
        let page =
            Page::new(List::ComponentFirmware, &stamp, requested.page_size, &requested.page_token)
                .or_status()?;
        let query =
            ComponentQuery { targets, filter, after: page.from.clone(), limit: page.limit() };
        let found = call.engine.components().versions(query).await.or_status()?;
        let found = found.into_iter().map(|one| (one.target.key(), one)).collect();
        let (found, next_page_token) = page.split_page(found, |(key, _)| key);
        let components = found.into_iter().map(|(_, one)| versions(one)).collect();
        Ok(Response::new(v1::ListComponentFirmwareVersionsResponse { components, next_page_token }))
    }
}

fn update_from(
    requested: v1::UpdateComponentFirmwareRequest,
    by: String,
) -> Result<FirmwareUpdate, Refusal> {
    text::check_short("reference", &requested.reference)?;
    let targets =
        targets_from(requested.compute_trays, requested.switches, requested.power_shelves)?;
    Ok(FirmwareUpdate {
        overrides: overrides_from(requested.gate_override, component_firmware(&targets))?,
        targets,
        firmware: firmware_from(&requested.target_version)?,
        request_id: match requested.request_id.as_str() {
            "" => String::new(),
            given => text::check_request_id(given)?,
        },
        by,
        reference: requested.reference,
        dry_run: requested.dry_run,
    })
}

fn firmware_from(id: &str) -> Result<Option<FirmwareId>, Refusal> {
    match id {
        "" => Ok(None),
        id => FirmwareId::parse_field(id, "target_version").map(Some),
    }
}

fn targets_from(
    trays: Option<v1::ComputeTrays>,
    switches: Option<v1::Switches>,
    shelves: Option<v1::PowerShelves>,
) -> Result<Vec<TargetId>, Refusal> {
    let mut targets = Vec::new();
    for (index, id) in trays.unwrap_or_default().machine_ids.iter().enumerate() {
        let field = format!("compute_trays.machine_ids[{index}]");
        targets.push(TargetId::from(&MachineId::parse_field(id, &field)?));
    }
    for (index, id) in switches.unwrap_or_default().switch_ids.iter().enumerate() {
        let field = format!("switches.switch_ids[{index}]");
        targets.push(TargetId::from(&SwitchId::parse_field(id, &field)?));
    }
    for (index, id) in shelves.unwrap_or_default().power_shelf_ids.iter().enumerate() {
        let field = format!("power_shelves.power_shelf_ids[{index}]");
        targets.push(TargetId::from(&PowerShelfId::parse_field(id, &field)?));
    }
    Ok(targets)
}

fn result(done: FirmwareUpdateResult) -> v1::ComponentResult {
    use v1::ComponentOutcome as O;
    let mut result = v1::ComponentResult {
        device_type: words::value::<v1::TargetKind>(done.target.kind.as_str()),
        device_id: done.target.id.clone(),
        rack_id: done.rack.map(|rack| rack.to_string()).unwrap_or_default(),
        success: true,
        ..v1::ComponentResult::default()
    };
    if let Some(preview) = &done.preview {
        result.steps = preview.planned.steps.iter().map(|step| step.name.clone()).collect();
        result.refusals = preview.refusals.iter().map(gate).collect();
        result.affected_machine_ids = affected_machine_ids(preview);
        result.notes = notes(preview);
    }
    match done.outcome {
        UpdateOutcome::Started(run) => {
            result.set_outcome(O::Started);
            result.message = format!("{run} upgrades it");
            result.next = format!("farrier why {run}");
            result.operation_id = run.to_string();
        }
        UpdateOutcome::Planned(steps) => {
            result.set_outcome(O::WouldStart);
            result.message = "it would be upgraded".into();
            result.steps = steps.iter().map(|one| one.left.step.name.clone()).collect();
            (result.limit_seconds, result.usual_ms, result.usual_p95_ms) =
                time_fields(TimeEstimate::of(&steps));
        }
        UpdateOutcome::Refused(refusal) => {
            result.set_outcome(O::Refused);
            result.success = false;
            result.message = refusal.message;
            result.next = refusal.next_command.unwrap_or_default();
        }
    }
    result
}

fn status(found: ComponentStatus) -> v1::ComponentFirmwareStatus {
    let ComponentStatus { device, differs } = found;
    let (firmware_id, desired) = match &device.desired {
        FirmwareResolution::Use(one) => (one.id.to_string(), one.versions(device.target.kind)),
        FirmwareResolution::Unknown(id) => (id.to_string(), Default::default()),
        FirmwareResolution::Skip(_) => Default::default(),
    };
    v1::ComponentFirmwareStatus {
        device_type: words::value::<v1::TargetKind>(device.target.kind.as_str()),
        device_id: device.target.id,
        rack_id: device.rack.map(|rack| rack.to_string()).unwrap_or_default(),
        current: device.facts.firmware.into_iter().collect(),
        firmware_id,
        desired: desired.into_iter().collect(),
        differs,
        operation_id: device.active_run.map(|run| run.to_string()).unwrap_or_default(),
    }
}

fn versions(found: ComponentVersions) -> v1::ComponentFirmwareVersions {
    let ComponentVersions { target, hardware_type, facts, firmware } = found;
    let versions = firmware.iter().map(|one| v1::ComponentFirmwareVersion {
        firmware_id: one.id.to_string(),
        components: one.versions(target.kind).into_iter().collect(),
        is_default: one.is_default,
        available: one.available,
        installed: one.missing_on(target.kind, &facts.firmware).is_empty(),
    });
    v1::ComponentFirmwareVersions {
        device_type: words::value::<v1::TargetKind>(target.kind.as_str()),
        device_id: target.id.clone(),
        hardware_type,
        versions: versions.collect(),
    }
}
