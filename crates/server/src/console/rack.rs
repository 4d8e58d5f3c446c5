//! One rack: the explanation of its state, its devices from top to bottom, and its maintenance.

use super::badge::{record_state, run_phase, step_phase, tone_of_record};
use super::clock::{absolute, lasted, stamp};
use super::fleet::label_list;
use super::frame::{Frame, Live, Section, facts, run_link, target_link};
use super::text::clean;
use super::why::why;
use super::wrong::{Page, Wrong};
use super::{Asked, Console, history, read};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use engine::racks::{LegStatus, MaintenanceStatus, PartStatus, RackView};
use maud::{Markup, html};
use model::effect::PowerTo;
use model::id::RackId;
use model::lifecycle::Lifecycle;
use model::rack::Device;
use model::time::Timestamp;

pub(super) async fn show(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Page {
    let id = RackId::parse(&id).map_err(Wrong::unknown)?;
    let engine = &console.engine;
    let drawn_at = read::horizon(engine).await?;
    let view = engine.rack(&id).await?;
    let explained = engine.explain(id.as_str()).await?;
    let operations = engine.maintenance_in(&id).await?;
    let head = &view.rack.head;
    let before = history::before(&asked);
    let history = history::read(engine, id.as_str(), head.version, before).await?;
    let now = engine.now();
    let word = view.rack.word();
    let body = html! {
        h1 #title data-region {
            (id) " " (record_state(word, &view.rack.state_words())) " "
            span.dim { (clean(&view.rack.spec.hardware_type)) }
        }
        (why(&explained, id.as_str(), tone_of_record(word), now))
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
    let title = format!("{word} {id}");
    let live = Some(Live::changes("", drawn_at));
    Ok(Frame { title: &title, section: Section::Racks, live, body }.answer(StatusCode::OK))
}

/// The devices by slot, highest first; those without a slot come last.
fn elevation(view: &RackView) -> Markup {
    let mut devices: Vec<&Device> = view.devices.iter().collect();
    let place = |device: &Device| (device.slot.is_none(), std::cmp::Reverse(device.slot));
    devices.sort_by_key(|device| (place(device), device.target.kind, device.target.id.clone()));
    html! {
        section aria-labelledby="elevation-title" {
            h2 #elevation-title { "Elevation" span.dim { " highest place first" } }
            div.scroll { table.elevation {
                thead { tr {
                    th.num scope="col" { "Place" } th scope="col" { "Device" } th scope="col" { "Kind" }
                    th scope="col" { "State" } th scope="col" { "Power" } th scope="col" { "Worked on by" }
                } }
                tbody {
                    @for device in devices { (slot(device)) }
                    @if view.devices.is_empty() { tr { td colspan="6" { "Nothing stands in it yet." } } }
                }
            } }
        }
    }
}

fn slot(device: &Device) -> Markup {
    let power = match device.power {
        Some(PowerTo::On) => "on",
        Some(PowerTo::Off) => "off",
        None => "–",
    };
    html! {
        tr class=(device.target.kind.as_str()) {
            td.num { @if let Some(slot) = device.slot { (slot) } @else { "–" } }
            th scope="row" { (target_link(&device.target)) }
            td { (device.target.kind.noun()) }
            td { (record_state(&device.state, &device.state)) }
            td { (power) }
            td { @if let Some(run) = &device.active_run { (run_link(run)) } }
        }
    }
}

fn about(view: &RackView, now: Timestamp) -> Markup {
    let rack = &view.rack;
    let expected = rack.spec.expected;
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean(text)) });
    html! {
        section aria-labelledby="about-title" {
            h2 #about-title { "Rack" }
            (facts(&[
                ("hardware type", words(&rack.spec.hardware_type)),
                ("expected", Some(html! {
                    (expected.machines) " machines, " (expected.switches) " switches, "
                    (expected.power_shelves) " power shelves"
                })),
                ("waits for", words(&view.waits_for)),
                ("in this state", Some(stamp(rack.head.since, now))),
                ("version", Some(html! { (rack.head.version) })),
                ("registered", Some(html! { (absolute(rack.head.created_at)) })),
                ("labels", (!rack.head.labels.is_empty()).then(|| label_list(&rack.head.labels))),
            ]))
        }
    }
}

fn operation(one: &MaintenanceStatus, now: Timestamp) -> Markup {
    let run = &one.run;
    html! {
        h3 {
            (run_link(&run.spec.id)) " " (run_phase(run.phase()).badge()) " "
            span.dim { "by " (clean(&run.spec.initiator)) " · " (stamp(run.spec.created_at, now)) }
        }
        div.scroll { table {
            caption.vh { "The legs of " (run.spec.id) }
            thead { tr {
                th scope="col" { "Leg" } th scope="col" { "State" } th scope="col" { "Took" }
                th scope="col" { "Devices" } th scope="col" { "Said" }
            } }
            tbody { @for leg in &one.legs { (row(leg, now)) } }
        } }
    }
}

fn row(leg: &LegStatus, now: Timestamp) -> Markup {
    html! {
        tr {
            th scope="row" { (clean(&leg.name)) }
            td { (step_phase(leg.state.state).badge()) }
            td.when { (lasted(leg.state.started_at, leg.state.finished_at, now)) }
            td { @for part in &leg.parts { (device(part)) " " } }
            td.words { (clean(&leg.state.message)) }
        }
    }
}

/// A device's child run in a step: its phase, with a link to it.
fn device(part: &PartStatus) -> Markup {
    match &part.run {
        None => html! { span.dim { (part.target) } },
        Some(run) => {
            let look = run_phase(run.phase());
            html! {
                a href={ "/operations/" (run.spec.id) } class={ "badge " (look.tone.class()) } {
                    span aria-hidden="true" { (look.sign) " " } (part.target)
                    span.vh { " " (look.word) }
                }
            }
        }
    }
}
