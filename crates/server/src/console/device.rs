//! One switch or power shelf: the explanation of its state, its spec, and what it reports about
//! itself.

use super::badge::{record_state, run_phase, tone_of_record};
use super::clock::{absolute, stamp};
use super::fleet::label_list;
use super::frame::{Frame, Live, Section, facts, run_link, target_link};
use super::text::clean;
use super::why::why;
use super::wrong::{Page, Wrong};
use super::{Asked, Console, history, read};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use model::device::Device;
use model::effect::Facts;
use model::filter::{Filter, Subject};
use model::id::{PowerShelfId, SwitchId};
use model::lifecycle::{DeviceSpec, Head};
use model::power_shelf::PowerShelf;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;

/// How many operations a device's page shows.
const RECENT: i64 = 10;

pub(super) async fn switch(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Page {
    let id = SwitchId::parse(&id).map_err(Wrong::unknown)?;
    show::<Switch>(&console, TargetId::from(&id), &asked).await
}

pub(super) async fn power_shelf(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Page {
    let id = PowerShelfId::parse(&id).map_err(Wrong::unknown)?;
    show::<PowerShelf>(&console, TargetId::from(&id), &asked).await
}

async fn show<D: Device>(console: &Console, target: TargetId, asked: &Asked) -> Page {
    let engine = &console.engine;
    let drawn_at = read::horizon(engine).await?;
    let device = engine.device::<D>(target.as_str()).await?;
    let explained = engine.explain(target.as_str()).await?;
    let of_device = format!("machine_id=\"{}\"", target.key());
    let runs = engine.runs(Filter::parse(&of_device, Subject::Run)?, None, RECENT).await?;
    let head = device.head();
    let history =
        history::read(engine, target.as_str(), head.version, history::before(asked)).await?;
    let now = engine.now();
    let word = device.word();
    let body = html! {
        h1 #title data-region { (target) " " (record_state(word, word)) " " span.dim { (target.kind.noun()) } }
        (why(&explained, target.as_str(), tone_of_record(word), now))
        div #state .columns data-region {
            (about(head, device.spec(), now))
            (said(device.facts()))
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
                    td { (run_phase(run.phase()).badge()) }
                    td { @if let Some(whole) = &run.spec.part_of { (run_link(whole)) } }
                    td.when { (stamp(run.spec.created_at, now)) }
                    td.words { @if let Some(failure) = &run.progress.failure { (clean(&failure.fault.said)) } }
                } } }
            }
        }
        (history.draw(&address(&target), now))
    };
    let title = format!("{word} {target}");
    let live = Some(Live::changes(&of_device, drawn_at));
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

fn about(head: &Head, spec: &DeviceSpec, now: Timestamp) -> Markup {
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean(text)) });
    let code = |text: &str| (!text.is_empty()).then(|| html! { code { (clean(text)) } });
    let rack = head.rack.as_ref().map(|rack| target_link(&TargetId::from(rack)));
    html! {
        section aria-labelledby="about-title" {
            h2 #about-title { "Status and spec" }
            (facts(&[
                ("rack", rack),
                ("place", head.slot.map(|slot| html! { (slot) })),
                ("worked on by", head.active_run.as_ref().map(run_link)),
                ("in this state", Some(stamp(head.since, now))),
                ("version", Some(html! { (head.version) })),
                ("registered", Some(html! { (absolute(head.created_at)) })),
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

fn said(seen: &Facts) -> Markup {
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean(text)) });
    html! {
        section aria-labelledby="said-title" {
            h2 #said-title { "What it says of itself" }
            (facts(&[
                ("power", seen.power.map(|power| html! { (power.as_str()) })),
                ("manufacturer", words(&seen.manufacturer)),
                ("model", words(&seen.model)),
                ("serial", words(&seen.serial)),
            ]))
            @if !seen.firmware.is_empty() {
                table {
                    caption { "Firmware" }
                    tbody { @for (component, version) in &seen.firmware {
                        tr { th scope="row" { (clean(component)) } td { (clean(version)) } }
                    } }
                }
            }
        }
    }
}
