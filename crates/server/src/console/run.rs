//! One operation: the explanation of its state, its steps, its failure, and its log.

pub(super) mod list;

use super::badge::{run_phase_badge, step_phase_badge};
use super::clock::{format_elapsed, format_utc, relative_time};
use super::error_page::{ErrorPage, PageResult};
use super::frame::{Frame, PageStream, Section, command, facts, fault_link, run_link, target_link};
use super::log::LogTail;
use super::text::clean_text;
use super::why::why;
use super::{Console, QueryParams, history, log, queries};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use model::id::RunId;
use model::run::{Failure, Run, StepState};
use model::time::Timestamp;
use model::why::next_command;
use store::Cursor;

pub(super) async fn show(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let id = RunId::parse_field(&id, "operation_id").map_err(ErrorPage::not_found)?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let run = engine.runs().get(&id).await?;
    let explained = engine.explain(id.as_str()).await?;
    let tail = log::read_tail(engine, &id).await?;
    let before = history::before(&requested);
    let history = history::read_history(engine, id.as_str(), run.version, before).await?;
    let now = engine.now();
    let badge = run_phase_badge(run.phase());
    let kind = run.spec.run_type.as_str();
    let body = html! {
        h1 #title data-region {
            (kind) " of " (target_link(&run.spec.target)) " " (badge.draw()) " " span.dim { (id) }
        }
        (why(&explained, id.as_str(), badge.tone, now))
        div #state data-region {
            @if let Some(failure) = &run.progress.failure { (error(&run, failure)) }
            div.columns { (steps(&run, "Steps", now)) (about(&run, now)) }
        }
        (tail.draw(&id, run.ended()))
        (history.draw(&format!("/operations/{id}"), now))
    };
    let title = format!("{} {kind} {}", badge.label, run.spec.target);
    let live = Some(live(&run, drawn_at, &tail));
    Ok(Frame { title: &title, section: Section::Operations, live, body }.answer(StatusCode::OK))
}

/// While the run is active the page follows its log; afterwards it waits for a change, such as a
/// resume.
fn live(run: &Run, drawn_at: Cursor, tail: &LogTail) -> PageStream {
    let id = &run.spec.id;
    if run.ended() {
        return PageStream::changes(&format!("run_id={id}"), drawn_at);
    }
    let stream = format!("/operations/{id}/stream?after={drawn_at}&offset={}", tail.end);
    PageStream { stream, mode: "follow" }
}

fn error(run: &Run, failure: &Failure) -> Markup {
    let fault = &failure.fault;
    let attempts = match failure.attempts {
        1 => "1 attempt".to_string(),
        many => format!("{many} attempts"),
    };
    html! {
        section.error role="alert" aria-labelledby="error-title" {
            h2 #error-title { "× Step " (failure.step) " failed after " (attempts) }
            p { (clean_text(&fault.message)) " " span.dim { "(" (fault_link(fault.code)) ", " (fault.class().as_str()) ")" } }
            @if let Some(next) = next_command(run) { p { (command(&next)) } }
        }
    }
}

pub(super) fn steps(run: &Run, title: &str, now: Timestamp) -> Markup {
    let current = run.progress.current();
    html! {
        section.steps aria-labelledby="steps-title" {
            h2 #steps-title { (title) }
            ol {
                @for state in &run.progress.steps {
                    (step(run, state, !run.ended() && current.is_some_and(|one| std::ptr::eq(one, state)), now))
                }
            }
        }
    }
}

fn step(run: &Run, state: &StepState, current: bool, now: Timestamp) -> Markup {
    let name = run.step_name(state);
    // A stage has the same name as its effect.
    let kind = run.effect(state).map(|effect| effect.name()).filter(|kind| *kind != name);
    let tries = match state.attempt {
        0 | 1 => String::new(),
        attempt => format!("attempt {attempt} of {}", state.max_attempt),
    };
    html! {
        li aria-current=[current.then_some("step")] {
            (step_phase_badge(state.state).draw())
            " " strong { (name) }
            " " span.dim { @if let Some(kind) = kind { (kind) } @if state.undo { ", undoing" } }
            span.took {
                @if !tries.is_empty() { span.tries { (tries) } " " }
                (format_elapsed(state.started_at, state.finished_at, now))
            }
            @if !state.message.is_empty() { div.said { (clean_text(&state.message)) } }
        }
    }
}

fn about(run: &Run, now: Timestamp) -> Markup {
    let (spec, progress) = (&run.spec, &run.progress);
    let when =
        |at: Timestamp| html! { (relative_time(at, now)) span.dim { " · " (format_utc(at)) } };
    let params = (!spec.params.is_empty()).then(|| {
        html! { @for (key, value) in &spec.params { code { (clean_text(key)) "=" (clean_text(value)) } " " } }
    });
    let halt = progress.stop_request.as_ref().map(|halt| {
        html! { "by " (clean_text(&halt.by)) @if !halt.reason.is_empty() { ": " (clean_text(&halt.reason)) } }
    });
    html! {
        section aria-labelledby="about-title" {
            h2 #about-title { "About" }
            (facts(&[
                ("workflow state", Some(html! { (progress.workflow.as_str()) })),
                ("machine", Some(target_link(&spec.target))),
                ("plan", Some(html! { (spec.plan_id) })),
                ("parameters", params),
                ("asked for by", Some(html! { (clean_text(&spec.initiator)) })),
                ("asked to stop", halt),
                ("request id", Some(html! { code { (clean_text(&spec.request_id)) } })),
                ("follows", spec.rerun_of.as_ref().map(run_link)),
                ("created", Some(when(spec.created_at))),
                ("started", progress.started_at.map(when)),
                ("finished", progress.finished_at.map(when)),
                ("took", Some(html! { (format_elapsed(progress.started_at, progress.finished_at, now)) })),
            ]))
        }
    }
}
