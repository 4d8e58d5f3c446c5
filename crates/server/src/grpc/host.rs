//! HostService: the firmware of machines, managed for an operator or for the machine's rack.

use super::GrpcServices;
use super::convert::{initiator, time};
use super::status::{refusal_status, store_error_status};
use engine::host::{HostView, Reprovision};
use model::host::{Check, HostState, Owner};
use model::id::{FirmwareId, MachineId};
use model::run::act::Who;
use model::text;
use proto::v1;
use tonic::{Request, Response, Status};

type Answer = Result<Response<v1::Host>, Status>;

#[tonic::async_trait]
impl v1::host_service_server::HostService for GrpcServices {
    async fn trigger_host_reprovisioning(
        &self,
        request: Request<v1::TriggerHostReprovisioningRequest>,
    ) -> Answer {
        let by = initiator(request.metadata());
        let asked = request.into_inner();
        let firmware = match asked.firmware_id.as_str() {
            "" => None,
            id => Some(FirmwareId::parse(id).map_err(refusal_status)?),
        };
        let wanted = Reprovision {
            machine: MachineId::parse(&asked.machine_id).map_err(refusal_status)?,
            firmware,
            request_id: match asked.dry_run {
                true => asked.request_id,
                false => text::request_id(&asked.request_id).map_err(refusal_status)?,
            },
            by,
        };
        let engine = self.engine.with_dry_run(asked.dry_run);
        let seen = engine.hosts().reprovision(wanted).await.map_err(store_error_status)?;
        Ok(Response::new(host(seen)))
    }

    async fn cancel_host_reprovisioning(
        &self,
        request: Request<v1::CancelHostReprovisioningRequest>,
    ) -> Answer {
        let who = Who { by: initiator(request.metadata()), reason: String::new() };
        let id = MachineId::parse(&request.get_ref().machine_id).map_err(refusal_status)?;
        let engine = self.engine.with_dry_run(request.get_ref().dry_run);
        let seen = engine.hosts().cancel(&id, who).await.map_err(store_error_status)?;
        Ok(Response::new(host(seen)))
    }

    async fn get_host(&self, request: Request<v1::GetHostRequest>) -> Answer {
        let id = MachineId::parse(&request.get_ref().machine_id).map_err(refusal_status)?;
        let seen = self.engine.hosts().get(&id).await.map_err(store_error_status)?;
        Ok(Response::new(host(seen)))
    }
}

fn host(view: HostView) -> v1::Host {
    let HostView { host, check, gate, told, next_attempt } = view;
    let (retry_count, cause) = match &host.state {
        HostState::CheckingFirmwareV2 { retry_count } => (*retry_count, None),
        HostState::FailedFirmwareUpgrade { retry_count, cause } => (*retry_count, Some(cause)),
        HostState::Ready | HostState::WaitingForRackFirmwareUpgrade => (0, None),
    };
    let asked = host.request.is_some();
    let (differs, nothing_to_do, steps) = match check {
        Check::Install { steps, known, .. } if asked => {
            (known, String::new(), steps.into_iter().map(|step| step.name).collect())
        }
        Check::Nothing(said) | Check::Unknown(said) if asked => (Vec::new(), said, Vec::new()),
        Check::Install { .. } | Check::Nothing(_) | Check::Unknown(_) => {
            (Vec::new(), String::new(), Vec::new())
        }
    };
    let request = host.request.as_ref();
    let run = cause.and_then(|cause| cause.run.as_ref());
    v1::Host {
        machine_id: host.head.id.clone(),
        state: host.state.word().into(),
        since: Some(time(host.head.since)),
        retry_count: i32::try_from(retry_count).unwrap_or(i32::MAX),
        next_attempt_at: next_attempt.map(time),
        failed: cause.map(|cause| cause.said.clone()).unwrap_or_default(),
        failed_operation_id: run.map(ToString::to_string).unwrap_or_default(),
        fault: cause.map(|cause| cause.code.clone()).unwrap_or_default(),
        requested_by: request.map(|request| request.owner.said()).unwrap_or_default(),
        rack_owned: request.is_some_and(|one| matches!(one.owner, Owner::Rack { .. })),
        firmware_id: request
            .and_then(|request| request.firmware.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
        requested_at: request.map(|request| time(request.requested_at)),
        operation_id: host.run.as_ref().map(ToString::to_string).unwrap_or_default(),
        waiting_for: told.map(|told| told.waiting_for).unwrap_or_default(),
        firmware: host.facts.firmware.clone().into_iter().collect(),
        differs,
        nothing_to_do,
        steps,
        refused: gate.filter(|_| asked).map(|refusal| refusal.said).unwrap_or_default(),
    }
}
