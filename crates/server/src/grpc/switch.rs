//! SwitchService.

use super::convert::{expected_version, initiator, who};
use super::device::{DevicePageRequest, described, labels, spec, status};
use super::page::{List, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::update;
use super::{Answer, Call, GrpcServices};
use engine::DescribedDevice;
use model::filter::FilterSubject;
use model::id::SwitchId;
use model::refusal::Refusal;
use model::switch::Switch;
use proto::v1;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::switch_service_server::SwitchService for GrpcServices {
    async fn register_switch(
        &self,
        request: Request<v1::RegisterSwitchRequest>,
    ) -> Answer<v1::Switch> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let v1::RegisterSwitchRequest { switch: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("switch")))?;
        let id = checked_id(&requested).or_status()?;
        let change = update::change(requested, None, &["labels", "spec"], switch, switch_from);
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.devices().register_changed(id, change, actor).await.or_status()?;
        call.switch_response(&done, dry_run).await
    }

    async fn get_switch(&self, request: Request<v1::GetSwitchRequest>) -> Answer<v1::Switch> {
        let call = self.call(&request).await?;
        let id = SwitchId::parse(&request.get_ref().switch_id).or_status()?;
        let found = call.engine.devices().get(id.as_str()).await.or_status()?;
        let status = Some(call.device_status(&found).await?);
        Ok(Response::new(v1::Switch { status, ..switch(&found) }))
    }

    async fn list_switches(
        &self,
        request: Request<v1::ListSwitchesRequest>,
    ) -> Answer<v1::ListSwitchesResponse> {
        let call = self.call(&request).await?;
        let v1::ListSwitchesRequest { filter, page_size, page_token, order_by } =
            request.into_inner();
        let desired = DevicePageRequest {
            list: List::Switches,
            subject: FilterSubject::Switch,
            filter: &filter,
            order_by: &order_by,
            size: page_size,
            token: &page_token,
        };
        let (found, next_page_token) = call.device_page(desired).await?;
        let switches = found.records.iter().map(switch).collect();
        let unreadable_rows = unreadable_rows(&found.unreadable);
        Ok(Response::new(v1::ListSwitchesResponse { switches, next_page_token, unreadable_rows }))
    }

    async fn update_switch(&self, request: Request<v1::UpdateSwitchRequest>) -> Answer<v1::Switch> {
        let call = self.call(&request).await?;
        let actor = initiator(request.metadata());
        let v1::UpdateSwitchRequest {
            switch: requested,
            expected_version: version,
            dry_run,
            update_mask,
        } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("switch")))?;
        let id = SwitchId::parse_field(&requested.switch_id, "switch.switch_id").or_status()?;
        let change =
            update::change(requested, update_mask, &["labels", "spec"], switch, switch_from);
        let (engine, version) = (call.engine.with_dry_run(dry_run), expected_version(version));
        let done =
            engine.devices().update(id.as_str(), change, version, actor).await.or_status()?;
        call.switch_response(&done, dry_run).await
    }

    async fn delete_switch(&self, request: Request<v1::DeleteSwitchRequest>) -> Answer<v1::Switch> {
        let call = self.call(&request).await?;
        let id = SwitchId::parse(&request.get_ref().switch_id).or_status()?;
        let requester = who(request.metadata(), "").or_status()?;
        let dry_run = request.get_ref().dry_run;
        let engine = call.engine.with_dry_run(dry_run);
        let version = expected_version(request.get_ref().expected_version);
        let done = engine.devices().delete(id.as_str(), version, requester).await.or_status()?;
        call.switch_response(&done, dry_run).await
    }

    async fn retry_switch(&self, request: Request<v1::RetrySwitchRequest>) -> Answer<v1::Switch> {
        let call = self.call(&request).await?;
        let id = SwitchId::parse(&request.get_ref().switch_id).or_status()?;
        let requester = who(request.metadata(), "").or_status()?;
        let dry_run = request.get_ref().dry_run;
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.devices().retry(id.as_str(), requester).await.or_status()?;
        call.switch_response(&done, dry_run).await
    }
}

impl Call {
    /// The response of a change; in a dry run with the transitions that would follow.
    async fn switch_response(&self, done: &Switch, dry_run: bool) -> Answer<v1::Switch> {
        let mut reported = switch(done);
        if let (true, Some(status)) = (dry_run, &mut reported.status) {
            status.would_follow = self.engine.devices().preview_switch(done).await.or_status()?;
        }
        Ok(Response::new(reported))
    }
}

pub(super) fn switch_from(requested: Option<v1::Switch>) -> Result<DescribedDevice, Refusal> {
    let requested = requested.ok_or_else(|| Refusal::missing("switch"))?;
    described::<Switch>(checked_id(&requested)?, requested.labels, requested.spec)
}

/// The id of a described switch; empty if the server is to generate one.
fn checked_id(requested: &v1::Switch) -> Result<String, Refusal> {
    if !requested.switch_id.is_empty() {
        SwitchId::parse_field(&requested.switch_id, "switch.switch_id")?;
    }
    Ok(requested.switch_id.clone())
}

fn switch(switch: &Switch) -> v1::Switch {
    v1::Switch {
        switch_id: switch.head.id.clone(),
        labels: labels(switch),
        spec: Some(spec(switch)),
        status: Some(status(switch)),
    }
}
