//! AdminService: conditions that only an administrator sets, each with a reason; the replicas; and
//! the check of the database.

use super::convert::{initiator, machine, overrides_from, time};
use super::page::{List, Page};
use super::status::OrStatus;
use super::{Answer, Call, GrpcServices};
use crate::database;
use engine::machine::FlagRequest;
use model::condition::ConditionType;
use model::filter::{Filter, FilterSubject};
use model::gate::FLAG_MACHINE;
use model::id::MachineId;
use model::run::actions::Requester;
use model::text;
use proto::v1;
use store::ReplicaStatus;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response};

impl Call {
    async fn set_condition(
        &self,
        metadata: &MetadataMap,
        (machine_id, reason, dry_run): (&str, &str, bool),
        (condition, status): (ConditionType, bool),
        gate_override: Option<v1::GateOverride>,
    ) -> Answer<v1::Machine> {
        let id = MachineId::parse(machine_id).or_status()?;
        let reason = text::check_reason("reason", reason).or_status()?;
        let overrides = overrides_from(gate_override, FLAG_MACHINE).or_status()?;
        let requester = Requester { by: initiator(metadata), reason };
        let engine = self.engine.with_dry_run(dry_run);
        let flag = FlagRequest { id, condition, status, overrides };
        let done = engine.machines().flag(flag, requester).await.or_status()?;
        Ok(Response::new(machine(done)))
    }
}

#[tonic::async_trait]
impl v1::admin_service_server::AdminService for GrpcServices {
    async fn set_rma(&self, request: Request<v1::SetRmaRequest>) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let v1::SetRmaRequest { machine_id, reason, dry_run, gate_override } = request.get_ref();
        let what = (machine_id.as_str(), reason.as_str(), *dry_run);
        let flag = (ConditionType::Rma, true);
        call.set_condition(request.metadata(), what, flag, gate_override.clone()).await
    }

    async fn clear_rma(&self, request: Request<v1::ClearRmaRequest>) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let v1::ClearRmaRequest { machine_id, reason, dry_run } = request.get_ref();
        let what = (machine_id.as_str(), reason.as_str(), *dry_run);
        let flag = (ConditionType::Rma, false);
        call.set_condition(request.metadata(), what, flag, None).await
    }

    async fn set_retired(&self, request: Request<v1::SetRetiredRequest>) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let v1::SetRetiredRequest { machine_id, reason, dry_run, gate_override } =
            request.get_ref();
        let what = (machine_id.as_str(), reason.as_str(), *dry_run);
        let flag = (ConditionType::Retired, true);
        call.set_condition(request.metadata(), what, flag, gate_override.clone()).await
    }

    async fn clear_retired(
        &self,
        request: Request<v1::ClearRetiredRequest>,
    ) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let v1::ClearRetiredRequest { machine_id, reason, dry_run } = request.get_ref();
        let what = (machine_id.as_str(), reason.as_str(), *dry_run);
        let flag = (ConditionType::Retired, false);
        call.set_condition(request.metadata(), what, flag, None).await
    }

    async fn clear_needs_intervention(
        &self,
        request: Request<v1::ClearNeedsInterventionRequest>,
    ) -> Answer<v1::Machine> {
        let call = self.call(&request).await?;
        let v1::ClearNeedsInterventionRequest { machine_id, reason, dry_run } = request.get_ref();
        let what = (machine_id.as_str(), reason.as_str(), *dry_run);
        let flag = (ConditionType::NeedsIntervention, false);
        call.set_condition(request.metadata(), what, flag, None).await
    }

    async fn list_replicas(
        &self,
        request: Request<v1::ListReplicasRequest>,
    ) -> Answer<v1::ListReplicasResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Replica).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Replicas, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.engine.scheduler().replicas(filter, page.after(), page.size + 1).await;
        let found = found.or_status()?;
        let (found, next_page_token) = page.split_page(found, |one| &one.replica.name);
        let replicas = found.into_iter().map(replica).collect();
        Ok(Response::new(v1::ListReplicasResponse { replicas, next_page_token }))
    }

    async fn check_database(
        &self,
        request: Request<v1::CheckDatabaseRequest>,
    ) -> Answer<v1::CheckDatabaseResponse> {
        let call = self.call(&request).await?;
        Ok(Response::new(database::check(call.engine.store()).await?))
    }

    async fn set_aside_row(
        &self,
        request: Request<v1::SetAsideRowRequest>,
    ) -> Answer<v1::RowSetAside> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let moved = database::set_aside(call.engine.store(), request.into_inner(), by).await?;
        Ok(Response::new(moved))
    }

    async fn rotate_secrets(
        &self,
        request: Request<v1::RotateSecretsRequest>,
    ) -> Answer<v1::RotateSecretsResponse> {
        let call = self.call(&request).await?;
        let who = Requester { by: initiator(request.metadata()), reason: String::new() };
        let secrets = call.secrets.with_dry_run(request.get_ref().dry_run);
        let done = secrets.rotate_keys(who).await.or_status()?;
        Ok(Response::new(v1::RotateSecretsResponse {
            key_id: done.key_id,
            resealed: i64::try_from(done.resealed).unwrap_or(i64::MAX),
            removed_key_ids: done.removed,
            kept_key_ids: done.kept,
            master_key_id: done.master_id,
            unused_master_key_ids: done.unused_masters,
        }))
    }

    async fn put_back_row(
        &self,
        request: Request<v1::PutBackRowRequest>,
    ) -> Answer<v1::RowSetAside> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let moved = database::put_back(call.engine.store(), request.into_inner(), by).await?;
        Ok(Response::new(moved))
    }
}

fn replica(status: ReplicaStatus) -> v1::Replica {
    v1::Replica {
        name: status.replica.name,
        incarnation: status.replica.incarnation,
        version: status.version,
        started_at: Some(time(status.started_at)),
        last_heartbeat_at: status.heartbeat_at.map(time),
        lease_expires_at: Some(time(status.expires_at)),
        claims: status.claims,
    }
}
