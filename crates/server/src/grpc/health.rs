//! HealthService: health reports about machines, racks, switches and power shelves.

use super::convert::{initiator, time, time_from};
use super::page::{List, Page, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::{Answer, Call, GrpcServices};
use model::filter::{Filter, FilterSubject};
use model::health::{Alert, Alerts, HealthSummary, ReportChange, Reports};
use model::refusal::Refusal;
use model::run::actions::Requester;
use model::target::TargetId;
use model::time::Timestamp;
use proto::{v1, words};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl v1::health_service_server::HealthService for GrpcServices {
    async fn get_health(&self, request: Request<v1::GetHealthRequest>) -> Answer<v1::Health> {
        let call = self.call(&request).await?;
        let object = TargetId::parse(&request.get_ref().id).or_status()?;
        let found = call.engine.health().get(&object).await.or_status()?;
        Ok(Response::new(health_with_reports(&object, &found)))
    }

    async fn list_health(
        &self,
        request: Request<v1::ListHealthRequest>,
    ) -> Answer<v1::ListHealthResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Health).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Health, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.engine.health().list(filter, page.after(), page.limit()).await;
        let found = found.or_status()?;
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let found = found.items.into_iter();
        let found = found.map(|(object, reports)| (object.key(), object, reports));
        let (found, next_page_token) = page.split_page(found.collect(), |(key, _, _)| key);
        let objects =
            found.iter().map(|(_, object, reports)| health_with_reports(object, reports)).collect();
        Ok(Response::new(v1::ListHealthResponse { objects, next_page_token, unreadable_rows }))
    }

    async fn merge_health_report(
        &self,
        request: Request<v1::MergeHealthReportRequest>,
    ) -> Answer<v1::Health> {
        let call = self.call(&request).await?;
        let (metadata, _, requested) = request.into_parts();
        let alerts = alerts_from(requested.alerts, call.engine.now()).or_status()?;
        if alerts.is_empty() {
            return Err(refusal_status(Refusal::missing("alerts")));
        }
        let about = (requested.id.as_str(), requested.source);
        call.change_health(&metadata, about, ReportChange::Merge(alerts), requested.dry_run).await
    }

    async fn replace_health_report(
        &self,
        request: Request<v1::ReplaceHealthReportRequest>,
    ) -> Answer<v1::Health> {
        let call = self.call(&request).await?;
        let (metadata, _, requested) = request.into_parts();
        let alerts = alerts_from(requested.alerts, call.engine.now()).or_status()?;
        let about = (requested.id.as_str(), requested.source);
        call.change_health(&metadata, about, ReportChange::Replace(alerts), requested.dry_run).await
    }

    async fn delete_health_report(
        &self,
        request: Request<v1::DeleteHealthReportRequest>,
    ) -> Answer<v1::Health> {
        let call = self.call(&request).await?;
        let (metadata, _, requested) = request.into_parts();
        let change = ReportChange::Remove(requested.alert_ids.into_iter().collect());
        let about = (requested.id.as_str(), requested.source);
        call.change_health(&metadata, about, change, requested.dry_run).await
    }
}

impl Call {
    async fn change_health(
        &self,
        metadata: &MetadataMap,
        (id, source): (&str, String),
        change: ReportChange,
        dry_run: bool,
    ) -> Answer<v1::Health> {
        let object = TargetId::parse(id).or_status()?;
        let requester = Requester { by: initiator(metadata), reason: String::new() };
        let engine = self.engine.with_dry_run(dry_run);
        let after = engine.health().change(&object, source, change, requester).await.or_status()?;
        Ok(Response::new(health_with_reports(&object, &after)))
    }

    /// The health of an object with its reports; none when it has no alerts, and then nothing is
    /// read.
    pub(super) async fn health_of(
        &self,
        object: &TargetId,
        status: &HealthSummary,
    ) -> Result<Option<v1::Health>, Status> {
        if status.is_clear() {
            return Ok(None);
        }
        let reports = self.engine.health().get(object).await.or_status()?;
        Ok((!reports.is_empty()).then(|| health_with_reports(object, &reports)))
    }
}

pub(super) fn alerts_from(
    requested: Vec<v1::HealthAlert>,
    now: Timestamp,
) -> Result<Alerts, Refusal> {
    let mut alerts = Alerts::new();
    for one in requested {
        let alert = Alert {
            component: one.target,
            message: one.message,
            classes: one.classifications.into_iter().collect(),
            // A time in the future is replaced by now.
            since: one.since.map_or(now, |since| time_from(&since)).min(now),
        };
        if alerts.contains_key(&one.id) {
            let problem = format!("{:?} is given twice", one.id);
            return Err(Refusal::invalid("alerts.id", problem, "give each alert an id of its own"));
        }
        alerts.insert(one.id, alert);
    }
    Ok(alerts)
}

/// An object's health with all its reports.
fn health_with_reports(object: &TargetId, reports: &Reports) -> v1::Health {
    let report = |(source, report): (&String, &model::health::HealthReport)| v1::HealthReport {
        source: source.clone(),
        alerts: report.alerts.iter().map(|(id, one)| alert(id, one)).collect(),
        updated_at: Some(time(report.updated_at)),
    };
    let summary =
        health_summary(object, &HealthSummary::of(reports)).unwrap_or_else(|| v1::Health {
            id: object.to_string(),
            kind: words::value::<v1::TargetKind>(object.kind.as_str()),
            ..v1::Health::default()
        });
    v1::Health { reports: reports.iter().map(report).collect(), ..summary }
}

fn alert(id: &str, alert: &Alert) -> v1::HealthAlert {
    v1::HealthAlert {
        id: id.into(),
        target: alert.component.clone(),
        message: alert.message.clone(),
        classifications: alert.classes.iter().cloned().collect(),
        since: Some(time(alert.since)),
    }
}

/// An object's health without the reports, for lists; none when it has no alerts.
pub(super) fn health_summary(object: &TargetId, status: &HealthSummary) -> Option<v1::Health> {
    let bars = status.blocking_alerts().into_iter().map(|(class, bar)| v1::HealthBar {
        classification: class.as_str().into(),
        source: bar.source.clone(),
        alert: bar.alert.clone(),
        message: bar.message.clone(),
    });
    (!status.is_clear()).then(|| v1::Health {
        id: object.to_string(),
        kind: words::value::<v1::TargetKind>(object.kind.as_str()),
        reports: Vec::new(),
        alerts: i32::try_from(status.alerts).unwrap_or(i32::MAX),
        bars: bars.collect(),
    })
}
