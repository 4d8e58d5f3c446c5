//! The list of racks, by id: expected devices, state and errors.

use crate::console::badge::record_state_badge;
use crate::console::clock::relative_time;
use crate::console::error_page::PageResult;
use crate::console::fleet::label_list;
use crate::console::frame::{Frame, PageStream, Section, target_link};
use crate::console::list::{PAGE_SIZE, unreadable_note};
use crate::console::text::{clean_text, encode_query};
use crate::console::{Console, QueryParams, queries};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use model::filter::Filter;
use model::id::RackId;
use model::lifecycle::Lifecycle;
use model::rack::{Rack, RackState};
use model::time::Timestamp;

pub(in crate::console) async fn show(
    State(console): State<Console>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let after = requested.get("after").map(|id| RackId::parse_field(id, "after")).transpose()?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let first = after.is_none();
    let after = after.map(|id| id.to_string());
    let page = engine.racks().list(Filter::default(), after, PAGE_SIZE as usize).await?;
    let now = engine.now();
    let body = html! {
        h1 { "Racks" }
        div #list data-region {
            (unreadable_note(&page.unreadable))
            div.scroll { table.wide {
                caption.vh { "Racks" }
                thead { tr {
                    th scope="col" { "Rack" } th scope="col" { "State" } th scope="col" { "Hardware" }
                    th.num scope="col" { "Machines" } th.num scope="col" { "Switches" }
                    th.num scope="col" { "Power shelves" } th scope="col" { "Since" }
                    th scope="col" { "Labels" } th scope="col" { "What is the matter" }
                } }
                tbody {
                    @for rack in &page.records { (row(rack, now)) }
                    @if page.records.is_empty() { tr { td colspan="9" {
                        "No rack is registered. Make one: " code { "farrier rack create rack-1 --hardware-type …" }
                    } } }
                }
            } }
            nav.pages aria-label="Pages" {
                @if !first { a href="/racks" { "« first page" } }
                @if let Some(next) = &page.next {
                    a rel="next" href={ "/racks?after=" (encode_query(next)) } { "next " (PAGE_SIZE) " »" }
                }
            }
        }
    };
    let live = Some(PageStream::changes("", drawn_at));
    Ok(Frame { title: "Racks", section: Section::Racks, live, body }.answer(StatusCode::OK))
}

fn row(rack: &Rack, now: Timestamp) -> Markup {
    let expected = rack.spec.expected;
    html! {
        tr {
            th scope="row" { (target_link(&rack.target())) }
            td { (record_state_badge(rack.state_name(), &rack.state_words())) }
            td { (clean_text(&rack.spec.hardware_type)) }
            td.num { (expected.machines) } td.num { (expected.switches) } td.num { (expected.power_shelves) }
            td.when { (relative_time(rack.head.since, now)) }
            td { (label_list(&rack.head.labels)) }
            td.words { (clean_text(&error_text(rack))) }
        }
    }
}

/// The error of a failed rack; other racks have none.
fn error_text(rack: &Rack) -> String {
    match &rack.state {
        RackState::Error { cause } => match &cause.device {
            Some(device) => format!("{device}: {}", cause.failure.message),
            None => cause.failure.message.clone(),
        },
        RackState::Created
        | RackState::Discovering
        | RackState::Maintenance { .. }
        | RackState::Validating
        | RackState::Ready
        | RackState::Deleting => String::new(),
    }
}
