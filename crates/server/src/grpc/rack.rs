//! RackService: racks, and the maintenance of the devices in them.

pub(super) mod convert;

use super::convert::{expected_version, initiator, overrides_from};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::stream::{self, Streaming};
use super::update;
use super::{Answer, Call, GrpcServices};
use engine::rack::{MaintenanceStart, MaintenanceStatus};
use model::filter::FilterSubject;
use model::gate::{DELETE_RACK, RACK_MAINTENANCE};
use model::id::{RackId, RunId};
use model::order::Selection;
use model::rack::maintenance::{MaintenanceTrigger, RackMaintenanceRequest};
use model::rack::{Rack, RackState};
use model::refusal::Refusal;
use model::text;
use proto::v1;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

/// The fields of a rack that clients may change.
const WRITABLE: &[&str] = &["labels", "hardware_type", "expected", "location"];

/// Distinguishes a rack's id from an operation's.
const RACK_PREFIX: &str = "rack-";

/// The fields that both maintenance requests share.
struct MaintenanceFields {
    request_id: String,
    reference: String,
    gate_override: Option<v1::GateOverride>,
    dry_run: bool,
}

impl MaintenanceFields {
    fn start(
        self,
        metadata: &MetadataMap,
        rack_id: RackId,
        desired: RackMaintenanceRequest,
        trigger: MaintenanceTrigger,
    ) -> Result<MaintenanceStart, Refusal> {
        if !self.request_id.is_empty() {
            text::check_request_id(&self.request_id)?;
        }
        Ok(MaintenanceStart {
            rack_id,
            request: desired,
            trigger,
            request_id: self.request_id,
            by: initiator(metadata),
            reference: self.reference,
            overrides: overrides_from(self.gate_override, RACK_MAINTENANCE)?,
            dry_run: self.dry_run,
        })
    }
}

impl Call {
    async fn start_maintenance(
        &self,
        start: MaintenanceStart,
    ) -> Answer<v1::RackMaintenanceOnDemandResponse> {
        let started = self.engine.racks().maintain(start).await.or_status()?;
        Ok(Response::new(convert::started(&started)))
    }

    /// The answer to a change of a rack; in a dry run with what the rack would do.
    async fn changed_rack(&self, changed: &Rack, dry_run: bool) -> Answer<v1::Rack> {
        let mut shown = convert::rack(changed);
        let looks = matches!(changed.state, RackState::Created | RackState::Discovering);
        if let (Some(status), true) = (&mut shown.status, dry_run)
            && (looks || changed.topology_changed)
        {
            let follows = self.engine.racks().predict_rediscovery(changed).await.or_status()?;
            status.would_follow.push(follows);
        }
        Ok(Response::new(shown))
    }

    async fn maintenance_statuses(&self, id: &str) -> Result<Vec<MaintenanceStatus>, Status> {
        if id.starts_with(RACK_PREFIX) {
            let rack = RackId::parse_field(id, "id").or_status()?;
            return self.engine.racks().operations(&rack).await.or_status();
        }
        let run = RunId::parse_field(id, "id").or_status()?;
        Ok(vec![self.engine.racks().status(&run).await.or_status()?])
    }
}

#[tonic::async_trait]
impl v1::rack_service_server::RackService for GrpcServices {
    type WatchRacksStream = Streaming<v1::RackEvent>;

    async fn create_rack(&self, request: Request<v1::CreateRackRequest>) -> Answer<v1::Rack> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let described = convert::described(requested.rack).or_status()?;
        let engine = call.engine.with_dry_run(requested.dry_run);
        let made = engine.racks().create(described, by).await.or_status()?;
        call.changed_rack(&made, requested.dry_run).await
    }

    async fn get_rack(&self, request: Request<v1::GetRackRequest>) -> Answer<v1::Rack> {
        let call = self.call(&request).await?;
        let id = RackId::parse(&request.get_ref().rack_id).or_status()?;
        let view = call.engine.racks().get(&id).await.or_status()?;
        let health = call.health_of(&view.rack.target(), &view.rack.head.health).await?;
        let mut shown = convert::view(&view);
        if let Some(status) = &mut shown.status {
            status.health = health;
        }
        Ok(Response::new(shown))
    }

    async fn list_racks(
        &self,
        request: Request<v1::ListRacksRequest>,
    ) -> Answer<v1::ListRacksResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let v1::ListRacksRequest { filter, page_size, page_token, order_by } = requested;
        let selected = Selection::parse(&filter, &order_by, FilterSubject::Rack).or_status()?;
        let scope = scope(&filter, selected.order);
        let page = Page::new(List::Racks, &scope, page_size, &page_token).or_status()?;
        let size = usize::try_from(page.size).unwrap_or(usize::MAX);
        let found = call.engine.racks().list(selected, page.from.clone(), size).await;
        let found = found.or_status()?;
        Ok(Response::new(v1::ListRacksResponse {
            racks: found.records.iter().map(convert::rack).collect(),
            next_page_token: found.next.map(|last| page.token(&last)).unwrap_or_default(),
            unreadable_rows: unreadable_rows(&found.unreadable),
        }))
    }

    async fn update_rack(&self, request: Request<v1::UpdateRackRequest>) -> Answer<v1::Rack> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::UpdateRackRequest { rack, expected_version: version, dry_run, update_mask } =
            request.into_inner();
        let requested = rack.ok_or_else(|| refusal_status(Refusal::missing("rack")))?;
        let id = RackId::parse_field(&requested.rack_id, "rack.rack_id").or_status()?;
        let change =
            update::change(requested, update_mask, WRITABLE, convert::rack, convert::described);
        let (engine, version) = (call.engine.with_dry_run(dry_run), expected_version(version));
        let done = engine.racks().update(id, change, version, by).await.or_status()?;
        call.changed_rack(&done, dry_run).await
    }

    async fn delete_rack(&self, request: Request<v1::DeleteRackRequest>) -> Answer<v1::Rack> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let id = RackId::parse(&requested.rack_id).or_status()?;
        let version = expected_version(requested.expected_version);
        let engine = call.engine.with_dry_run(requested.dry_run);
        let overrides = overrides_from(requested.gate_override, DELETE_RACK).or_status()?;
        let marked = engine.racks().delete(id, version, overrides, by).await.or_status()?;
        Ok(Response::new(convert::view(&marked)))
    }

    async fn watch_racks(
        &self,
        request: Request<v1::WatchRacksRequest>,
    ) -> Answer<Self::WatchRacksStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let watch = call.open_watch(&requested.filter, &requested.cursor).await?;
        Ok(stream::watching(watch, requested.bookmark, convert::event))
    }

    async fn on_demand_rack_maintenance(
        &self,
        request: Request<v1::RackMaintenanceOnDemandRequest>,
    ) -> Answer<v1::RackMaintenanceOnDemandResponse> {
        let call = self.call(&request).await?;
        let metadata = request.metadata().clone();
        let requested = request.into_inner();
        let rack = requested.rack_id.map(|rack| rack.id).unwrap_or_default();
        let rack = RackId::parse(&rack).or_status()?;
        let desired = convert::maintenance_from(requested.scope.unwrap_or_default()).or_status()?;
        let ask = MaintenanceFields {
            request_id: requested.request_id,
            reference: requested.reference,
            gate_override: requested.gate_override,
            dry_run: requested.dry_run,
        };
        let start = ask.start(&metadata, rack, desired, MaintenanceTrigger::OnDemand);
        call.start_maintenance(start.or_status()?).await
    }

    async fn reprovision_rack(
        &self,
        request: Request<v1::ReprovisionRackRequest>,
    ) -> Answer<v1::RackMaintenanceOnDemandResponse> {
        let call = self.call(&request).await?;
        let metadata = request.metadata().clone();
        let requested = request.into_inner();
        let rack = RackId::parse(&requested.rack_id).or_status()?;
        let ask = MaintenanceFields {
            request_id: requested.request_id,
            reference: requested.reference,
            gate_override: requested.gate_override,
            dry_run: requested.dry_run,
        };
        let start = ask.start(
            &metadata,
            rack,
            RackMaintenanceRequest::default(),
            MaintenanceTrigger::Reprovision,
        );
        call.start_maintenance(start.or_status()?).await
    }

    async fn get_rack_maintenance_status(
        &self,
        request: Request<v1::GetRackMaintenanceStatusRequest>,
    ) -> Answer<v1::GetRackMaintenanceStatusResponse> {
        let call = self.call(&request).await?;
        let found = call.maintenance_statuses(&request.get_ref().id).await?;
        let operations = found.iter().map(convert::status).collect();
        Ok(Response::new(v1::GetRackMaintenanceStatusResponse { operations }))
    }
}
