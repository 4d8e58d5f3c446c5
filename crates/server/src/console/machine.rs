//! One machine: the explanation of its state, conditions, spec, recent operations and history.

use super::badge::{condition_tone, machine_badge, run_phase_badge};
use super::clock::{format_elapsed, format_utc, relative_time};
use super::error_page::{ErrorPage, PageResult};
use super::fleet::labels;
use super::frame::{
    Frame, PageStream, Section, facts, node_link, run_link, shelf_links, target_link,
};
use super::text::{clean_text, encode_query};
use super::why::why;
use super::{Console, QueryParams, history, queries};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use model::filter::{Filter, FilterSubject};
use model::id::{MachineId, NodeId};
use model::machine::Machine;
use model::machine::hardware::{PartSummary, RecordedHardware};
use model::run::Run;
use model::target::TargetId;
use model::time::Timestamp;
use store::RunPage;

/// The number of operations that a machine's page shows.
const RECENT: i64 = 10;

pub(super) async fn show(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let id = MachineId::parse(&id).map_err(ErrorPage::not_found)?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let machine = engine.machines().get(&id).await?;
    let explained = engine.explain(id.as_str()).await?;
    let of_machine = format!("machine_id={id}");
    let filter = Filter::parse(&of_machine, FilterSubject::Run)?;
    let runs = engine.runs().list(filter, None, RECENT).await?;
    let node = engine.nodes().on_machine(&id).await?;
    let hardware = engine.machines().hardware(vec![id.clone()]).await?.remove(&id);
    let before = history::before(&requested);
    let history = history::read_history(engine, id.as_str(), machine.version, before).await?;
    let now = engine.now();
    let badge = machine_badge(&machine);
    let body = html! {
        h1 #title data-region {
            (id) " " (badge.draw()) " " span.dim { "phase " (machine.phase.as_str()) " · " (badge.meaning) }
        }
        (why(&explained, id.as_str(), badge.tone, now))
        div #state .columns data-region {
            (conditions(&machine, now))
            (spec(&machine, node.as_ref(), now))
            @if let Some(recorded) = &hardware { (hardware_facts(recorded, now)) }
        }
        (recent(&runs, &of_machine, now))
        (history.draw(&format!("/machines/{id}"), now))
    };
    let title = format!("{} {id}", badge.label);
    let live = Some(PageStream::changes(&of_machine, drawn_at));
    Ok(Frame { title: &title, section: Section::Fleet, live, body }.answer(StatusCode::OK))
}

fn conditions(machine: &Machine, now: Timestamp) -> Markup {
    html! {
        section aria-labelledby="conditions-title" {
            h2 #conditions-title { "Conditions" }
            table {
                thead { tr {
                    th scope="col" { "Condition" } th scope="col" { "Status" }
                    th scope="col" { "Reason" } th scope="col" { "Last transition" }
                } }
                tbody {
                    @for (condition, known) in machine.conditions.iter() {
                        tr {
                            th scope="row" { (condition.as_str()) }
                            td { span class={ "mark " (condition_tone(condition, known.status).class()) } {
                                @if known.status { "✓ true" } @else { "× false" } } }
                            td.words { (clean_text(&known.reason)) }
                            td.when { (relative_time(known.last_transition, now)) }
                        }
                    }
                    @if machine.conditions.iter().next().is_none() {
                        tr { td colspan="4" { "This machine was not probed yet." } }
                    }
                }
            }
        }
    }
}

fn spec(machine: &Machine, node: Option<&NodeId>, now: Timestamp) -> Markup {
    let spec = &machine.spec;
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean_text(text)) });
    let code = |text: &str| (!text.is_empty()).then(|| html! { code { (clean_text(text)) } });
    let active = machine.active_run.as_ref().map_or(html! { span.dim { "none" } }, run_link);
    html! {
        section aria-labelledby="spec-title" {
            h2 #spec-title { "Status and spec" }
            (facts(&[
                ("lifecycle state", words(machine.lifecycle_state().as_str())),
                ("active operation", Some(active)),
                ("serves as", node.map(node_link)),
                ("version", Some(html! { (machine.version) })),
                ("updated", Some(relative_time(machine.updated_at, now))),
                ("registered", Some(html! { (format_utc(machine.created_at)) })),
                ("labels", (!machine.labels.is_empty()).then(|| labels(machine))),
                ("SSH endpoint", code(&spec.ssh_endpoint)),
                ("BMC endpoint", code(&spec.bmc_endpoint)),
                ("target cluster", words(&spec.target_cluster_ref)),
                ("node name", words(&spec.node_name)),
                ("MAC addresses", code(&spec.mac_addresses.join(" "))),
                ("provider", words(&spec.provider)),
                ("serial", words(&spec.serial)),
                ("customer", words(&spec.customer_id)),
                ("BMC credential", words(&spec.bmc_credential)),
                ("SSH credential", words(&spec.ssh_credential)),
                ("Root disk", words(&spec.root_disk)),
                ("rack", spec.rack.as_ref().map(|rack| target_link(&TargetId::from(rack)))),
                ("slot", spec.slot.map(|slot| html! { (slot) })),
                ("height", spec.height_u.map(|height| html! { (height) "U" })),
                ("fed by", (!spec.feeds.is_empty()).then(|| shelf_links(&spec.feeds))),
            ]))
        }
    }
}

fn hardware_facts(recorded: &RecordedHardware, now: Timestamp) -> Markup {
    let found = &recorded.summary;
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean_text(text)) });
    let parts = |parts: &PartSummary| {
        (parts.count > 0).then(|| html! { (parts.count) " × " (clean_text(&parts.model)) })
    };
    let memory = found.memory_mib / 1024;
    html! {
        section aria-labelledby="hardware-title" {
            h2 #hardware-title { "Hardware, as last inspected" }
            (facts(&[
                ("inspected", Some(relative_time(recorded.inspected_at, now))),
                ("vendor", words(&found.vendor)),
                ("model", words(&found.model)),
                ("serial", words(&found.serial)),
                ("SKU", words(&found.sku)),
                ("BIOS", words(&found.bios_version)),
                ("BMC firmware", words(&found.bmc_version)),
                ("CPUs", parts(&found.cpus)),
                ("memory", (memory > 0).then(|| html! { (memory) " GiB" })),
                ("GPUs", parts(&found.gpus)),
                ("disks", parts(&found.disks)),
            ]))
        }
    }
}

fn recent(runs: &RunPage, of_machine: &str, now: Timestamp) -> Markup {
    html! {
        section #recent data-region aria-labelledby="recent-title" {
            h2 #recent-title { "Recent operations" }
            div.scroll { table {
                thead { tr {
                    th scope="col" { "Operation" } th scope="col" { "Type" } th scope="col" { "Phase" }
                    th scope="col" { "Step" } th scope="col" { "Created" } th scope="col" { "Took" }
                    th scope="col" { "By" } th scope="col" { "Error" }
                } }
                tbody {
                    @for run in &runs.runs { (run_row(run, now)) }
                    @if runs.runs.is_empty() { tr { td colspan="8" { "No operation has run here." } } }
                }
            } }
            @if runs.next.is_some() {
                p { a href={ "/operations?filter=" (encode_query(of_machine)) } { "all operations of this machine »" } }
            }
        }
    }
}

fn run_row(run: &Run, now: Timestamp) -> Markup {
    let progress = &run.progress;
    html! {
        tr {
            th scope="row" { (run_link(&run.spec.id)) }
            td { (run.spec.run_type.as_str()) }
            td { (run_phase_badge(run.phase()).draw()) }
            td { (run.current_step()) }
            td.when { (relative_time(run.spec.created_at, now)) }
            td.when { (format_elapsed(progress.started_at, progress.finished_at, now)) }
            td { (clean_text(&run.spec.initiator)) }
            td.words { @if let Some(failure) = &progress.failure { (clean_text(&failure.fault.message)) } }
        }
    }
}
