//! NotifierService: receivers of notices, and their dead letters.

use super::convert::{expected_version, time, who, word_from};
use super::page::{List, Page};
use super::status::{OrStatus, refusal_status};
use super::update;
use super::{Answer, GrpcServices};
use engine::NotifierStatus;
use model::notify::{DeadLetter, NoticeKind, Notifier, NotifierSpec, NotifyFormat, SendFailure};
use model::refusal::Refusal;
use proto::{v1, words};
use std::collections::BTreeSet;
use store::DeadLetterQuery;
use tonic::{Request, Response};

/// The fields that clients may change.
const WRITABLE: &[&str] =
    &["url", "credential", "format", "kinds", "filter", "source", "max_attempts"];

#[tonic::async_trait]
impl v1::notifier_service_server::NotifierService for GrpcServices {
    async fn create_notifier(
        &self,
        request: Request<v1::CreateNotifierRequest>,
    ) -> Answer<v1::Notifier> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::CreateNotifierRequest { notifier: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("notifier")))?;
        let name = requested.name.clone();
        let spec = spec_from(Some(requested)).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let created = engine.notifiers().create(&name, spec, requester).await.or_status()?;
        Ok(Response::new(notifier(&created)))
    }

    async fn get_notifier(&self, request: Request<v1::GetNotifierRequest>) -> Answer<v1::Notifier> {
        let call = self.call(&request).await?;
        let found = call.engine.notifiers().get(&request.get_ref().name).await.or_status()?;
        Ok(Response::new(notifier(&found)))
    }

    async fn list_notifiers(
        &self,
        request: Request<v1::ListNotifiersRequest>,
    ) -> Answer<v1::ListNotifiersResponse> {
        let call = self.call(&request).await?;
        let v1::ListNotifiersRequest { page_size, page_token } = request.into_inner();
        let page = Page::new(List::Notifiers, "", page_size, &page_token).or_status()?;
        let found = call.engine.notifiers().list(page.after(), page.size + 1).await.or_status()?;
        let shown = found.iter().map(notifier).collect();
        let (notifiers, next_page_token) = page.split_page(shown, |one: &v1::Notifier| &one.name);
        Ok(Response::new(v1::ListNotifiersResponse { notifiers, next_page_token }))
    }

    async fn update_notifier(
        &self,
        request: Request<v1::UpdateNotifierRequest>,
    ) -> Answer<v1::Notifier> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::UpdateNotifierRequest {
            notifier: requested,
            update_mask,
            expected_version: version,
            dry_run,
        } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("notifier")))?;
        let name = requested.name.clone();
        let change = update::change(requested, update_mask, WRITABLE, described, spec_from);
        let version = expected_version(version);
        let notifiers = call.engine.with_dry_run(dry_run).notifiers();
        let updated = notifiers.update(&name, change, version, requester).await.or_status()?;
        Ok(Response::new(notifier(&updated)))
    }

    async fn delete_notifier(
        &self,
        request: Request<v1::DeleteNotifierRequest>,
    ) -> Answer<v1::Notifier> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::DeleteNotifierRequest { name, expected_version: version, dry_run } =
            request.into_inner();
        let notifiers = call.engine.with_dry_run(dry_run).notifiers();
        let version = expected_version(version);
        let gone = notifiers.delete(&name, version, requester).await.or_status()?;
        Ok(Response::new(notifier(&gone)))
    }

    async fn pause_notifier(
        &self,
        request: Request<v1::PauseNotifierRequest>,
    ) -> Answer<v1::Notifier> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::PauseNotifierRequest { name, dry_run } = request.into_inner();
        let notifiers = call.engine.with_dry_run(dry_run).notifiers();
        let paused = notifiers.set_paused(&name, true, requester).await.or_status()?;
        Ok(Response::new(notifier(&paused)))
    }

    async fn resume_notifier(
        &self,
        request: Request<v1::ResumeNotifierRequest>,
    ) -> Answer<v1::Notifier> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::ResumeNotifierRequest { name, dry_run } = request.into_inner();
        let notifiers = call.engine.with_dry_run(dry_run).notifiers();
        let resumed = notifiers.set_paused(&name, false, requester).await.or_status()?;
        Ok(Response::new(notifier(&resumed)))
    }

    async fn test_notifier(
        &self,
        request: Request<v1::TestNotifierRequest>,
    ) -> Answer<v1::TestNotifierResponse> {
        let call = self.call(&request).await?;
        let sent = call.engine.notifiers().test(&request.get_ref().name).await.or_status()?;
        let accepted = sent.is_ok();
        let SendFailure { message, repair, .. } = sent.err().unwrap_or_default();
        let repair = repair.unwrap_or_default();
        Ok(Response::new(v1::TestNotifierResponse { accepted, problem: message, repair }))
    }

    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Answer<v1::ListDeadLettersResponse> {
        let call = self.call(&request).await?;
        let v1::ListDeadLettersRequest { name, page_size, page_token } = request.into_inner();
        let page = Page::new(List::DeadLetters, &name, page_size, &page_token).or_status()?;
        let after = page.after().parse().unwrap_or_default();
        let found = call.engine.notifiers().dead_letters(&name, after, page.size + 1).await;
        let placed: Vec<(String, v1::DeadLetter)> =
            found.or_status()?.iter().map(|one| (one.id.to_string(), letter(one))).collect();
        let (placed, next_page_token) = page.split_page(placed, |(id, _)| id);
        let dead_letters = placed.into_iter().map(|(_, one)| one).collect();
        Ok(Response::new(v1::ListDeadLettersResponse { dead_letters, next_page_token }))
    }

    async fn replay_dead_letters(
        &self,
        request: Request<v1::ReplayDeadLettersRequest>,
    ) -> Answer<v1::ReplayDeadLettersResponse> {
        let call = self.call(&request).await?;
        let v1::ReplayDeadLettersRequest { name, dead_letter_numbers: ids, dry_run } =
            request.into_inner();
        let notifiers = call.engine.with_dry_run(dry_run).notifiers();
        let query = DeadLetterQuery { notifier: name, ids };
        let replayed = notifiers.replay(query).await.or_status()?;
        Ok(Response::new(v1::ReplayDeadLettersResponse { replayed }))
    }

    async fn delete_dead_letters(
        &self,
        request: Request<v1::DeleteDeadLettersRequest>,
    ) -> Answer<v1::DeleteDeadLettersResponse> {
        let call = self.call(&request).await?;
        let v1::DeleteDeadLettersRequest { name, dead_letter_numbers: ids, dry_run } =
            request.into_inner();
        let notifiers = call.engine.with_dry_run(dry_run).notifiers();
        let query = DeadLetterQuery { notifier: name, ids };
        let deleted = notifiers.discard(query).await.or_status()?;
        Ok(Response::new(v1::DeleteDeadLettersResponse { deleted }))
    }
}

/// The part of a notifier that its owner describes.
fn spec_from(requested: Option<v1::Notifier>) -> Result<NotifierSpec, Refusal> {
    let requested = requested.unwrap_or_default();
    let format = word_from::<v1::NotifyFormat>("notifier.format", requested.format)?;
    let format = NotifyFormat::ALL.into_iter().find(|one| Some(one.as_str()) == format);
    let mut kinds = BTreeSet::new();
    for (index, kind) in requested.kinds.iter().enumerate() {
        let field = format!("notifier.kinds[{index}]");
        let word = word_from::<v1::NoticeKind>(&field, *kind)?;
        let kind = NoticeKind::ALL.into_iter().find(|one| Some(one.as_str()) == word);
        kinds.insert(kind.ok_or_else(|| Refusal::missing(&field))?);
    }
    let v1::Notifier { url, credential, filter, source, max_attempts, .. } = requested;
    let format = format.unwrap_or(NotifyFormat::CloudEvents);
    Ok(NotifierSpec { url, credential, format, kinds, filter, source, max_attempts })
}

fn described(spec: &NotifierSpec) -> v1::Notifier {
    let kinds = spec.kinds.iter().map(|kind| words::value::<v1::NoticeKind>(kind.as_str()));
    v1::Notifier {
        url: spec.url.clone(),
        credential: spec.credential.clone(),
        format: words::value::<v1::NotifyFormat>(spec.format.as_str()),
        kinds: kinds.collect(),
        filter: spec.filter.clone(),
        source: spec.source.clone(),
        max_attempts: spec.max_attempts,
        ..v1::Notifier::default()
    }
}

fn notifier(status: &NotifierStatus) -> v1::Notifier {
    let Notifier { name, spec, paused, version, created_at, updated_at, delivery } =
        &status.notifier;
    v1::Notifier {
        name: name.clone(),
        paused: *paused,
        version: *version,
        created_at: Some(time(*created_at)),
        updated_at: Some(time(*updated_at)),
        delivered: delivery.delivered,
        last_delivered_at: delivery.last_delivered_at.map(time),
        failing_since: delivery.failing_since.map(time),
        problem: delivery.problem.clone(),
        repair: delivery.repair.clone().unwrap_or_default(),
        next_attempt_at: delivery.not_before.map(time),
        dead_letters: status.dead_letters,
        missed_at: delivery.missed_at.map(time),
        ..described(spec)
    }
}

fn letter(letter: &DeadLetter) -> v1::DeadLetter {
    v1::DeadLetter {
        dead_letter_number: letter.id,
        event: letter.notice.id.clone(),
        r#type: letter.notice.event.as_str().into(),
        summary: letter.notice.summary.clone(),
        at: Some(time(letter.notice.at)),
        attempts: letter.attempts,
        problem: letter.problem.clone(),
        failed_at: Some(time(letter.failed_at)),
        replaying: letter.replaying,
    }
}
