//! Operations, newest first.

use crate::console::badge::run_phase_badge;
use crate::console::clock::{format_elapsed, relative_time};
use crate::console::error_page::PageResult;
use crate::console::frame::{Frame, PageStream, Section, run_link, target_link};
use crate::console::list::{List, PAGE_SIZE, unreadable_note};
use crate::console::text::clean_text;
use crate::console::{Console, QueryParams, queries};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use model::filter::FilterSubject;
use model::id::RunId;
use model::run::Run;
use model::time::Timestamp;
use model::why::overdue;
use store::RunPage;

const LIST: List = List {
    title: "Operations",
    section: Section::Operations,
    address: "/operations",
    subject: FilterSubject::Run,
    example: "phase=FAILED AND type=REIMAGE",
    from: "before",
};

/// Filters that operators use most.
const SHORTCUTS: [(&str, &str); 4] = [
    ("all", ""),
    ("active", "phase in (PENDING, RUNNING)"),
    ("failed", "phase=FAILED"),
    ("waiting for a person", "workflow_state=failed_manual_intervention"),
];

pub(in crate::console) async fn show(
    State(console): State<Console>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let filter = match LIST.filter(&requested) {
        Ok(filter) => filter,
        Err(refusal) => return Ok(LIST.not_understood(&requested, &refusal)),
    };
    let before = requested.get("before").map(|id| RunId::parse_field(id, "before")).transpose()?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let first = before.is_none();
    let page = engine.runs().list(filter, before.map(|id| id.to_string()), PAGE_SIZE).await?;
    let text = requested.get("filter").map_or("", |text| text.trim());
    let body = html! {
        h1 { "Operations" span.dim { " newest first" } }
        nav.shortcuts aria-label="Shortcuts" {
            @for (name, filter) in SHORTCUTS {
                a href=(LIST.with_filter(filter)) aria-current=[(filter == text).then_some("true")] { (name) }
            }
        }
        (LIST.filter_box(text))
        div #list data-region {
            (unreadable_note(&page.unreadable))
            (table(&page, engine.now()))
            (LIST.next_page(text, page.next.as_deref(), first))
        }
    };
    let live = Some(PageStream::changes("", drawn_at));
    Ok(Frame { title: "Operations", section: Section::Operations, live, body }
        .answer(StatusCode::OK))
}

fn table(page: &RunPage, now: Timestamp) -> Markup {
    html! {
        div.scroll {
            table.wide {
                caption.vh { "Operations, newest first" }
                thead { tr {
                    th scope="col" { "Operation" } th scope="col" { "Phase" } th scope="col" { "Type" }
                    th scope="col" { "Machine" } th scope="col" { "Step" } th scope="col" { "Created" }
                    th scope="col" { "Took" } th scope="col" { "By" } th scope="col" { "Error" }
                } }
                tbody {
                    @for run in &page.runs { (row(run, now)) }
                    @if page.runs.is_empty() { tr { td colspan="9" { "No operation matches." } } }
                }
            }
        }
    }
}

fn row(run: &Run, now: Timestamp) -> Markup {
    let progress = &run.progress;
    html! {
        tr {
            th scope="row" { (run_link(&run.spec.id)) }
            td {
                (run_phase_badge(run.phase()).draw())
                @if overdue(run, now) { " " strong.overdue { "! overdue" } }
            }
            td { (run.spec.run_type.as_str()) }
            td { (target_link(&run.spec.target)) }
            td { (run.current_step()) }
            td.when { (relative_time(run.spec.created_at, now)) }
            td.when { (format_elapsed(progress.started_at, progress.finished_at, now)) }
            td { (clean_text(&run.spec.initiator)) }
            td.words { @if let Some(failure) = &progress.failure { (clean_text(&failure.fault.message)) } }
        }
    }
}
