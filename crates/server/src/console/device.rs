//! One switch or power shelf: the explanation of its state, its spec, and what it reports about
//! itself.

use super::badge::{record_state_badge, record_tone, run_phase_badge};
use super::clock::{format_utc, relative_time};
use super::error_page::{ErrorPage, PageResult};
use super::fleet::label_list;
use super::frame::{Frame, PageStream, Section, facts, run_link, shelf_links, target_link};
use super::text::clean_text;
use super::why::why;
use super::{Console, QueryParams, history, queries};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use model::device::Device;
use model::effect::DeviceFacts;
use model::filter::{Filter, FilterSubject};
use model::id::{PowerShelfId, SwitchId};
use model::lifecycle::{DeviceSpec, RecordHeader};
use model::power_shelf::PowerShelf;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;

/// The number of operations that a device's page shows.
const RECENT: i64 = 10;

pub(super) async fn switch(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let id = SwitchId::parse(&id).map_err(ErrorPage::not_found)?;
    show::<Switch>(&console, TargetId::from(&id), &requested).await
}

pub(super) async fn power_shelf(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let id = PowerShelfId::parse(&id).map_err(ErrorPage::not_found)?;
    show::<PowerShelf>(&console, TargetId::from(&id), &requested).await
}

async fn show<D: Device>(console: &Console, target: TargetId, query: &QueryParams) -> PageResult {
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let device = engine.devices().get::<D>(target.as_str()).await?;
    let explained = engine.explain(target.as_str()).await?;
    let of_device = format!("machine_id=\"{}\"", target.key());
    let runs =
        engine.runs().list(Filter::parse(&of_device, FilterSubject::Run)?, None, RECENT).await?;
    let head = device.head();
    let history =
        history::read_history(engine, target.as_str(), head.version, history::before(query))
            .await?;
    let now = engine.now();
    let name = device.state_name();
    let body = html! {
        h1 #title data-region { (target) " " (record_state_badge(name, name)) " " span.dim { (target.kind.noun()) } }
        (why(&explained, target.as_str(), record_tone(name), now))
        div #state .columns data-region {
            (about(head, device.spec(), now))
            (reported_facts(device.facts()))
        }
        section #recent data-region aria-labelledby="recent-title" {
            h2 #recent-title { "Recent operations" }
            table {
                thead { tr {
                    th scope="col" { "Operation" } th scope="col" { "Type" } th scope="col" { "Phase" }
                    th scope="col" { "Part of" } th scope="col" { "Created" } th scope="col" { "Error" }
                } }
                tbody { @for run in &runs.runs { tr {
                    th scope="row" { (run_link(&run.spec.id)) }
                    td { (run.spec.run_type.as_str()) }
                    td { (run_phase_badge(run.phase()).draw()) }
                    td { @if let Some(complete) = &run.spec.parent_run { (run_link(complete)) } }
                    td.when { (relative_time(run.spec.created_at, now)) }
                    td.words { @if let Some(failure) = &run.progress.failure { (clean_text(&failure.fault.message)) } }
                } } }
            }
        }
        (history.draw(&address(&target), now))
    };
    let title = format!("{name} {target}");
    let live = Some(PageStream::changes(&of_device, drawn_at));
    Ok(Frame { title: &title, section: Section::Racks, live, body }.answer(StatusCode::OK))
}

fn address(target: &TargetId) -> String {
    match target.kind {
        TargetKind::Switch => format!("/switches/{target}"),
        TargetKind::PowerShelf => format!("/power-shelves/{target}"),
        TargetKind::Machine => format!("/machines/{target}"),
        TargetKind::Rack => format!("/racks/{target}"),
    }
}

fn about(head: &RecordHeader, spec: &DeviceSpec, now: Timestamp) -> Markup {
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean_text(text)) });
    let code = |text: &str| (!text.is_empty()).then(|| html! { code { (clean_text(text)) } });
    let rack = head.rack.as_ref().map(|rack| target_link(&TargetId::from(rack)));
    html! {
        section aria-labelledby="about-title" {
            h2 #about-title { "Status and spec" }
            (facts(&[
                ("rack", rack),
                ("slot", head.slot.map(|slot| html! { (slot) })),
                ("height", spec.height_u.map(|height| html! { (height) "U" })),
                ("fed by", (!spec.feeds.is_empty()).then(|| shelf_links(&spec.feeds))),
                ("worked on by", head.active_run.as_ref().map(run_link)),
                ("in this state", Some(relative_time(head.since, now))),
                ("version", Some(html! { (head.version) })),
                ("registered", Some(html! { (format_utc(head.created_at)) })),
                ("labels", (!head.labels.is_empty()).then(|| label_list(&head.labels))),
                ("BMC endpoint", code(&spec.bmc_endpoint)),
                ("BMC credential", words(&spec.bmc_credential)),
                ("SSH endpoint", code(&spec.ssh_endpoint)),
                ("SSH credential", words(&spec.ssh_credential)),
                ("provider", words(&spec.provider)),
                ("serial", words(&spec.serial)),
            ]))
        }
    }
}

fn reported_facts(observed: &DeviceFacts) -> Markup {
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean_text(text)) });
    html! {
        section aria-labelledby="said-title" {
            h2 #said-title { "What it says of itself" }
            (facts(&[
                ("power", observed.power.map(|power| html! { (power.as_str()) })),
                ("manufacturer", words(&observed.manufacturer)),
                ("model", words(&observed.model)),
                ("serial", words(&observed.serial)),
            ]))
            @if !observed.firmware.is_empty() {
                table {
                    caption { "Firmware" }
                    tbody { @for (component, version) in &observed.firmware {
                        tr { th scope="row" { (clean_text(component)) } td { (clean_text(version)) } }
                    } }
                }
            }
        }
    }
}
