//! HostService: the firmware of machines, managed for an operator or for the machine's rack.

use super::convert::{initiator, time};
use super::status::OrStatus;
use super::{Answer, GrpcServices};
use engine::host::{HostView, Reprovision};
use model::host::{FirmwareCheck, HostState, ReprovisionOwner};
use model::id::{FirmwareId, MachineId};
use model::run::actions::Requester;
use model::text;
use proto::{v1, words};
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::host_service_server::HostService for GrpcServices {
    async fn trigger_host_reprovisioning(
        &self,
        request: Request<v1::TriggerHostReprovisioningRequest>,
    ) -> Answer<v1::Host> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let firmware = match requested.firmware_id.as_str() {
            "" => None,
            id => Some(FirmwareId::parse(id).or_status()?),
        };
        let desired = Reprovision {
            machine: MachineId::parse(&requested.machine_id).or_status()?,
            firmware,
            request_id: match requested.dry_run {
                true => requested.request_id,
                false => text::check_request_id(&requested.request_id).or_status()?,
            },
            by,
        };
        let engine = call.engine.with_dry_run(requested.dry_run);
        let observed = engine.hosts().reprovision(desired).await.or_status()?;
        Ok(Response::new(host(observed)))
    }

    async fn cancel_host_reprovisioning(
        &self,
        request: Request<v1::CancelHostReprovisioningRequest>,
    ) -> Answer<v1::Host> {
        let call = self.call(&request).await?;
        let requester = Requester { by: initiator(request.metadata()), reason: String::new() };
        let id = MachineId::parse(&request.get_ref().machine_id).or_status()?;
        let engine = call.engine.with_dry_run(request.get_ref().dry_run);
        let observed = engine.hosts().cancel(&id, requester).await.or_status()?;
        Ok(Response::new(host(observed)))
    }

    async fn get_host(&self, request: Request<v1::GetHostRequest>) -> Answer<v1::Host> {
        let call = self.call(&request).await?;
        let id = MachineId::parse(&request.get_ref().machine_id).or_status()?;
        let observed = call.engine.hosts().get(&id).await.or_status()?;
        Ok(Response::new(host(observed)))
    }
}

fn host(view: HostView) -> v1::Host {
    let HostView { host, check, gate, explanation: reported, next_attempt } = view;
    let (retry_count, cause) = match &host.state {
        HostState::CheckingFirmwareV2 { retry_count } => (*retry_count, None),
        HostState::FailedFirmwareUpgrade { retry_count, cause } => (*retry_count, Some(cause)),
        HostState::Ready | HostState::WaitingForRackFirmwareUpgrade => (0, None),
    };
    let requested = host.request.is_some();
    let (differs, nothing_to_do, steps) = match check {
        FirmwareCheck::Install { steps, known, .. } if requested => {
            (known, String::new(), steps.into_iter().map(|step| step.name).collect())
        }
        FirmwareCheck::Nothing(message) | FirmwareCheck::Unknown(message) if requested => {
            (Vec::new(), message, Vec::new())
        }
        FirmwareCheck::Install { .. } | FirmwareCheck::Nothing(_) | FirmwareCheck::Unknown(_) => {
            (Vec::new(), String::new(), Vec::new())
        }
    };
    let request = host.request.as_ref();
    let run = cause.and_then(|cause| cause.run.as_ref());
    v1::Host {
        machine_id: host.head.id.clone(),
        state: words::value::<v1::HostState>(host.state.name()),
        since: Some(time(host.head.since)),
        retry_count: i32::try_from(retry_count).unwrap_or(i32::MAX),
        next_attempt_at: next_attempt.map(time),
        failed: cause.map(|cause| cause.message.clone()).unwrap_or_default(),
        failed_operation_id: run.map(ToString::to_string).unwrap_or_default(),
        fault: cause.map(|cause| cause.code.clone()).unwrap_or_default(),
        requested_by: request.map(|request| request.owner.describe()).unwrap_or_default(),
        rack_owned: request.is_some_and(|one| matches!(one.owner, ReprovisionOwner::Rack { .. })),
        firmware_id: request
            .and_then(|request| request.firmware.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
        requested_at: request.map(|request| time(request.requested_at)),
        operation_id: host.run.as_ref().map(ToString::to_string).unwrap_or_default(),
        waiting_for: reported.map(|reported| reported.waiting_for).unwrap_or_default(),
        firmware: host.facts.firmware.clone().into_iter().collect(),
        differs,
        nothing_to_do,
        steps,
        refused: gate.filter(|_| requested).map(|refusal| refusal.message).unwrap_or_default(),
    }
}
