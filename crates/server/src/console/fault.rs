//! The pages of fault codes, compiled in from the documentation.

use super::badge::Tone;
use super::error_page::{ErrorPage, PageResult};
use super::frame::{Frame, Section, command, fault_link};
use super::markdown;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use model::fault::{EffectOutcome, FaultClass, FaultCode};
use model::refusal::Refusal;

pub(super) async fn show(Path(code): Path<String>) -> PageResult {
    let Some(code) = FaultCode::parse(&code) else {
        let shown: String = code.chars().take(64).collect();
        return Err(ErrorPage::from(Refusal::not_found("fault", shown, "farrier why <id>")));
    };
    let body = html! {
        p { a href="/faults" { "« all faults" } " · in your terminal: "
            (command(&format!("farrier fault {}", code.as_str()))) }
        article.page { (markdown::draw(code.page())) }
    };
    let frame = Frame { title: code.as_str(), section: Section::Faults, live: None, body };
    Ok(frame.answer(StatusCode::OK))
}

pub(super) async fn list() -> Response {
    let body = html! {
        h1 { "Faults" span.dim { " what can go wrong, and what to do about it" } }
        div.scroll { table {
            thead { tr {
                th scope="col" { "Fault" } th scope="col" { "Class" }
                th scope="col" { "Did it happen all the same?" } th scope="col" { "In short" }
            } }
            tbody { @for code in FaultCode::ALL { (row(*code)) } }
        } }
    };
    Frame { title: "Faults", section: Section::Faults, live: None, body }.answer(StatusCode::OK)
}

fn row(code: FaultCode) -> Markup {
    let happened = match code.effect_outcome() {
        EffectOutcome::NotApplied => "no",
        EffectOutcome::Unknown => "maybe",
    };
    let tone = match code.class() {
        FaultClass::Retryable => Tone::Yellow,
        FaultClass::NeedsIntervention => Tone::Orange,
        FaultClass::Rejected | FaultClass::Bug => Tone::Red,
    };
    html! {
        tr {
            th scope="row" { (fault_link(code)) }
            td { span class={ "badge " (tone.class()) } { (code.class().as_str()) } }
            td { (happened) }
            td.words { (markdown::inline(&gist(code))) }
        }
    }
}

/// The first paragraph of the page.
fn gist(code: FaultCode) -> String {
    let lines = code.page().lines().skip(1).skip_while(|line| line.trim().is_empty());
    lines.take_while(|line| !line.trim().is_empty()).collect::<Vec<_>>().join(" ")
}
