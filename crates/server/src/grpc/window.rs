//! WindowService: windows and freezes, and whether they are open.

use super::convert::{expected_version, initiator, time, time_from};
use super::page::{List, Page};
use super::status::{OrStatus, refusal_status};
use super::{Answer, Call, GrpcServices};
use engine::start_rule::WindowUpdate;
use model::filter::{Filter, FilterSubject};
use model::refusal::Refusal;
use model::time::Timestamp;
use model::window::{
    HoldsFor, StartRule, StartRuleId, StartRuleKind, StartTerms, WeeklyWindows, WindowState,
};
use proto::{FieldMask, v1};
use tonic::{Request, Response, Status};

const WINDOW_ID: &str = "window.window_id";
const OPEN: &str = "window.open";
const HOLDS_FOR: &str = "window.holds_for";
/// The number of characters of an unknown field that a refusal shows.
const MAX_SHOWN: usize = 63;

#[tonic::async_trait]
impl v1::window_service_server::WindowService for GrpcServices {
    async fn create_window(&self, request: Request<v1::CreateWindowRequest>) -> Answer<v1::Window> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::CreateWindowRequest { window: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("window")))?;
        let desired = window_from(requested, by).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let made = engine.start_rules().create(desired).await.or_status()?;
        Ok(Response::new(window(&made, engine.now())))
    }

    async fn get_window(&self, request: Request<v1::GetWindowRequest>) -> Answer<v1::Window> {
        let call = self.call(&request).await?;
        let id =
            id(StartRuleKind::Window, &request.get_ref().window_id, "window_id").or_status()?;
        let found = call.engine.start_rules().get(&id).await.or_status()?;
        Ok(Response::new(window(&found, call.engine.now())))
    }

    async fn list_windows(
        &self,
        request: Request<v1::ListWindowsRequest>,
    ) -> Answer<v1::ListWindowsResponse> {
        let call = self.call(&request).await?;
        let v1::ListWindowsRequest { page_size, page_token, filter } = request.into_inner();
        let page = Page::new(List::Windows, &filter, page_size, &page_token).or_status()?;
        let (found, next_page_token) = list(&call, StartRuleKind::Window, &filter, page).await?;
        let windows = found.iter().map(|one| window(one, call.engine.now())).collect();
        Ok(Response::new(v1::ListWindowsResponse { windows, next_page_token }))
    }

    async fn update_window(&self, request: Request<v1::UpdateWindowRequest>) -> Answer<v1::Window> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let version = expected_version(requested.expected_version);
        let mask = requested.update_mask.unwrap_or_default();
        let (id, update) = update_from(requested.window, &mask).or_status()?;
        let engine = call.engine.with_dry_run(requested.dry_run);
        let done = engine.start_rules().update_window(id, update, version, by).await.or_status()?;
        Ok(Response::new(window(&done, engine.now())))
    }

    async fn delete_window(&self, request: Request<v1::DeleteWindowRequest>) -> Answer<v1::Window> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let id = id(StartRuleKind::Window, &requested.window_id, "window_id").or_status()?;
        let version = expected_version(requested.expected_version);
        let engine = call.engine.with_dry_run(requested.dry_run);
        let gone = engine.start_rules().delete(id, version, by).await.or_status()?;
        Ok(Response::new(window(&gone, engine.now())))
    }

    async fn create_freeze(&self, request: Request<v1::CreateFreezeRequest>) -> Answer<v1::Freeze> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::CreateFreezeRequest { freeze: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("freeze")))?;
        let desired = freeze_from(requested, by).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let made = engine.start_rules().create(desired).await.or_status()?;
        Ok(Response::new(freeze(&made, engine.now())))
    }

    async fn list_freezes(
        &self,
        request: Request<v1::ListFreezesRequest>,
    ) -> Answer<v1::ListFreezesResponse> {
        let call = self.call(&request).await?;
        let v1::ListFreezesRequest { page_size, page_token, filter } = request.into_inner();
        let page = Page::new(List::Freezes, &filter, page_size, &page_token).or_status()?;
        let (found, next_page_token) = list(&call, StartRuleKind::Freeze, &filter, page).await?;
        let freezes = found.iter().map(|one| freeze(one, call.engine.now())).collect();
        Ok(Response::new(v1::ListFreezesResponse { freezes, next_page_token }))
    }

    async fn end_freeze(&self, request: Request<v1::EndFreezeRequest>) -> Answer<v1::Freeze> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let id = id(StartRuleKind::Freeze, &requested.freeze_id, "freeze_id").or_status()?;
        let version = expected_version(requested.expected_version);
        let engine = call.engine.with_dry_run(requested.dry_run);
        let gone = engine.start_rules().delete(id, version, by).await.or_status()?;
        Ok(Response::new(freeze(&gone, engine.now())))
    }
}

fn id(kind: StartRuleKind, name: &str, field: &str) -> Result<StartRuleId, Refusal> {
    StartRuleId::parse_field(kind, name, field)
}

/// One page of the windows, or of the freezes, and the token of the next.
async fn list(
    call: &Call,
    kind: StartRuleKind,
    filter: &str,
    page: Page,
) -> Result<(Vec<StartRule>, String), Status> {
    let filter = Filter::parse(filter, FilterSubject::StartRule).or_status()?;
    let found = call.engine.start_rules().list(kind, filter, page.after(), page.size + 1).await;
    let found = found.or_status()?.items.into_iter();
    let named: Vec<(String, StartRule)> = found.map(|one| (one.id.name.clone(), one)).collect();
    let (found, next) = page.split_page(named, |(name, _)| name);
    Ok((found.into_iter().map(|(_, one)| one).collect(), next))
}

fn rule(id: StartRuleId, filter: String, terms: StartTerms, by: String) -> StartRule {
    StartRule {
        id,
        filter,
        holds_for: HoldsFor::default(),
        terms,
        created_by: by,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
        version: 0,
    }
}

fn window_from(requested: v1::Window, by: String) -> Result<StartRule, Refusal> {
    let id = id(StartRuleKind::Window, &requested.window_id, WINDOW_ID)?;
    let terms = StartTerms::Open(WeeklyWindows::parse(OPEN, &requested.open)?);
    let holds_for = HoldsFor::parse_field(HOLDS_FOR, &requested.holds_for, HoldsFor::Rollouts)?;
    Ok(StartRule { holds_for, ..rule(id, requested.filter, terms, by) })
}

fn freeze_from(requested: v1::Freeze, by: String) -> Result<StartRule, Refusal> {
    let id = id(StartRuleKind::Freeze, &requested.freeze_id, "freeze.freeze_id")?;
    let until = requested.until.as_ref().map(time_from);
    let until = until.ok_or_else(|| Refusal::missing("freeze.until"))?;
    let terms = StartTerms::Frozen { until, reason: requested.reason };
    let holds_for = &requested.holds_for;
    let holds_for = HoldsFor::parse_field("freeze.holds_for", holds_for, HoldsFor::Everything)?;
    Ok(StartRule { holds_for, ..rule(id, requested.filter, terms, by) })
}

fn update_from(
    requested: Option<v1::Window>,
    mask: &FieldMask,
) -> Result<(StartRuleId, WindowUpdate), Refusal> {
    let requested = requested.ok_or_else(|| Refusal::missing("window"))?;
    let id = id(StartRuleKind::Window, &requested.window_id, WINDOW_ID)?;
    let v1::Window { filter, open, holds_for, .. } = requested;
    let mut given: Vec<&str> = mask.paths.iter().map(String::as_str).collect();
    if given.is_empty() {
        let named = [("filter", &filter), ("open", &open), ("holds_for", &holds_for)];
        given = named.iter().filter(|(_, value)| !value.is_empty()).map(|one| one.0).collect();
    }
    if given.is_empty() {
        let instead = "set window.filter, window.open or window.holds_for";
        return Err(Refusal::invalid("window", "changes nothing", instead));
    }
    let mut update = WindowUpdate::default();
    for name in given {
        match name {
            "filter" => update.filter = Some(filter.clone()),
            "open" => update.open = Some(WeeklyWindows::parse(OPEN, &open)?),
            "holds_for" => {
                let parsed = HoldsFor::parse_field(HOLDS_FOR, &holds_for, HoldsFor::Rollouts)?;
                update.holds_for = Some(parsed);
            }
            name => {
                let shown: String = name.chars().take(MAX_SHOWN).collect();
                let instead = "name filter, open or holds_for";
                return Err(Refusal::invalid("update_mask", format!("names {shown:?}"), instead));
            }
        }
    }
    Ok((id, update))
}

fn window(rule: &StartRule, now: Timestamp) -> v1::Window {
    let (open, state) = match &rule.terms {
        StartTerms::Open(windows) => (windows.to_string(), Some(windows.state(now))),
        StartTerms::Frozen { .. } => (String::new(), None),
    };
    let (is_open, changes_at) = match state {
        Some(WindowState::Open(closes)) => (true, closes),
        Some(WindowState::Closed(opens)) => (false, opens),
        None => (false, None),
    };
    v1::Window {
        window_id: rule.id.name.clone(),
        filter: rule.filter.clone(),
        open,
        holds_for: rule.holds_for.as_str().into(),
        created_by: rule.created_by.clone(),
        created_at: Some(time(rule.created_at)),
        updated_at: Some(time(rule.updated_at)),
        version: rule.version,
        is_open,
        changes_at: changes_at.map(|one| time(one.at)),
    }
}

fn freeze(rule: &StartRule, now: Timestamp) -> v1::Freeze {
    let (until, reason) = match &rule.terms {
        StartTerms::Frozen { until, reason } => (Some(time(*until)), reason.clone()),
        StartTerms::Open(_) => (None, String::new()),
    };
    v1::Freeze {
        freeze_id: rule.id.name.clone(),
        filter: rule.filter.clone(),
        until,
        reason,
        holds_for: rule.holds_for.as_str().into(),
        created_by: rule.created_by.clone(),
        created_at: Some(time(rule.created_at)),
        version: rule.version,
        has_ended: rule.has_ended(now),
    }
}
