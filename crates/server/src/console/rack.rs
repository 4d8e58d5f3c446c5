//! One rack: the explanation of its state, its devices from top to bottom, and its maintenance.

pub(super) mod list;

use super::badge::{record_state_badge, record_tone, run_phase_badge, step_phase_badge};
use super::clock::{format_elapsed, format_utc, relative_time};
use super::error_page::{ErrorPage, PageResult};
use super::fleet::label_list;
use super::frame::{Frame, PageStream, Section, facts, run_link, target_link};
use super::text::clean_text;
use super::why::why;
use super::{Console, QueryParams, history, queries};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use engine::rack::{ChildRunStatus, MaintenanceStatus, RackStepStatus, RackView};
use maud::{Markup, html};
use model::effect::DesiredPower;
use model::id::RackId;
use model::lifecycle::Lifecycle;
use model::rack::RackDevice;
use model::time::Timestamp;

pub(super) async fn show(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let id = RackId::parse(&id).map_err(ErrorPage::not_found)?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let view = engine.racks().get(&id).await?;
    let explained = engine.explain(id.as_str()).await?;
    let operations = engine.racks().operations(&id).await?;
    let head = &view.rack.head;
    let before = history::before(&requested);
    let history = history::read_history(engine, id.as_str(), head.version, before).await?;
    let now = engine.now();
    let name = view.rack.state_name();
    let body = html! {
        h1 #title data-region {
            (id) " " (record_state_badge(name, &view.rack.state_words())) " "
            span.dim { (clean_text(&view.rack.spec.hardware_type)) }
        }
        (why(&explained, id.as_str(), record_tone(name), now))
        div #state .columns data-region {
            (elevation(&view))
            (about(&view, now))
        }
        section #operations data-region aria-labelledby="operations-title" {
            h2 #operations-title { "Maintenance" }
            @for one in &operations { (operation(one, now)) }
            @if operations.is_empty() { p { "Nothing has been done to this rack." } }
        }
        (history.draw(&format!("/racks/{id}"), now))
    };
    let title = format!("{name} {id}");
    let live = Some(PageStream::changes("", drawn_at));
    Ok(Frame { title: &title, section: Section::Racks, live, body }.answer(StatusCode::OK))
}

/// The devices by slot, highest first; those without a slot come last.
fn elevation(view: &RackView) -> Markup {
    let mut devices: Vec<&RackDevice> = view.devices.iter().collect();
    let position = |device: &RackDevice| (device.slot.is_none(), std::cmp::Reverse(device.slot));
    devices.sort_by_key(|device| (position(device), device.target.kind, device.target.id.clone()));
    html! {
        section aria-labelledby="elevation-title" {
            h2 #elevation-title { "Elevation" span.dim { " highest slot first" } }
            div.scroll { table.elevation {
                thead { tr {
                    th.num scope="col" { "Slot" } th scope="col" { "Device" } th scope="col" { "Kind" }
                    th scope="col" { "State" } th scope="col" { "Power" } th scope="col" { "Held by" }
                } }
                tbody {
                    @for device in devices { (slot(device)) }
                    @if view.devices.is_empty() { tr { td colspan="6" { "Nothing stands in it yet." } } }
                }
            } }
        }
    }
}

fn slot(device: &RackDevice) -> Markup {
    let power = match device.power {
        Some(DesiredPower::On) => "on",
        Some(DesiredPower::Off) => "off",
        None => "–",
    };
    html! {
        tr class=(device.target.kind.as_str()) {
            td.num {
                @match (device.slot, device.height_u) {
                    (Some(slot), Some(height)) if height > 1 => { (slot + height - 1) "–" (slot) },
                    (Some(slot), _) => { (slot) },
                    (None, _) => { "–" },
                }
            }
            th scope="row" { (target_link(&device.target)) }
            td { (device.target.kind.noun()) }
            td { (record_state_badge(device.state.as_str(), device.state.as_str())) }
            td { (power) }
            td { @if let Some(run) = &device.active_run { (run_link(run)) } }
        }
    }
}

fn about(view: &RackView, now: Timestamp) -> Markup {
    let rack = &view.rack;
    let (expected, location) = (rack.spec.expected, &rack.spec.location);
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean_text(text)) });
    html! {
        section aria-labelledby="about-title" {
            h2 #about-title { "Rack" }
            (facts(&[
                ("hardware type", words(&rack.spec.hardware_type)),
                ("room", words(&location.room)),
                ("row", words(&location.row)),
                ("position", words(&location.position)),
                ("expected", Some(html! {
                    (expected.machines) " machines, " (expected.switches) " switches, "
                    (expected.power_shelves) " power shelves"
                })),
                ("waits for", words(&view.waits_for)),
                ("in this state", Some(relative_time(rack.head.since, now))),
                ("version", Some(html! { (rack.head.version) })),
                ("registered", Some(html! { (format_utc(rack.head.created_at)) })),
                ("labels", (!rack.head.labels.is_empty()).then(|| label_list(&rack.head.labels))),
            ]))
        }
    }
}

fn operation(one: &MaintenanceStatus, now: Timestamp) -> Markup {
    let run = &one.run;
    html! {
        h3 {
            (run_link(&run.spec.id)) " " (run_phase_badge(run.phase()).draw()) " "
            span.dim { "by " (clean_text(&run.spec.initiator)) " · " (relative_time(run.spec.created_at, now)) }
        }
        div.scroll { table {
            caption.vh { "The steps of " (run.spec.id) }
            thead { tr {
                th scope="col" { "Step" } th scope="col" { "State" } th scope="col" { "Took" }
                th scope="col" { "Devices" } th scope="col" { "Message" }
            } }
            tbody { @for rack_step in &one.steps { (row(rack_step, now)) } }
        } }
    }
}

fn row(rack_step: &RackStepStatus, now: Timestamp) -> Markup {
    html! {
        tr {
            th scope="row" { (clean_text(&rack_step.name)) }
            td { (step_phase_badge(rack_step.state.state).draw()) }
            td.when { (format_elapsed(rack_step.state.started_at, rack_step.state.finished_at, now)) }
            td { @for part in &rack_step.child_runs { (device(part)) " " } }
            td.words { (clean_text(&rack_step.state.message)) }
        }
    }
}

/// A device's child run in a step: its phase, with a link to it.
fn device(part: &ChildRunStatus) -> Markup {
    match &part.run {
        None => html! { span.dim { (part.target) } },
        Some(run) => {
            let badge = run_phase_badge(run.phase());
            html! {
                a href={ "/operations/" (run.spec.id) } class={ "badge " (badge.tone.class()) } {
                    span aria-hidden="true" { (badge.sign) " " } (part.target)
                    span.vh { " " (badge.label) }
                }
            }
        }
    }
}
