//! One node: the explanation of its state, and its three separate layers side by side: the node's
//! state, the operation on it, and the observed state of its machine in MAAS.

pub(super) mod list;

use super::badge::{Tone, node_tone, record_state_badge, workflow_badge};
use super::clock::{format_utc, relative_time};
use super::error_page::{ErrorPage, PageResult};
use super::frame::{Frame, PageStream, Section, facts, fault_link, machine_link, run_link};
use super::run::steps;
use super::text::clean_text;
use super::why::why;
use super::{Console, QueryParams, history, queries};
use crate::grpc::workflow_kind;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use engine::node::NodeView;
use maud::{Markup, html};
use model::id::NodeId;
use model::lifecycle::Lifecycle;
use model::node::{Node, NodeState, Quarantine, is_expected_maas_state};
use model::run::Run;
use model::time::Timestamp;
use store::NodeHeartbeat;

pub(super) async fn show(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let id = NodeId::parse(&id).map_err(ErrorPage::not_found)?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let NodeView { node, run, heartbeat: name, enrolled, site_answered, .. } =
        engine.nodes().get(&id).await?;
    let explained = engine.explain(id.as_str()).await?;
    let before = history::before(&requested);
    let history = history::read_history(engine, id.as_str(), node.head.version, before).await?;
    let now = engine.now();
    let body = html! {
        h1 #title data-region {
            (id) " " (record_state_badge(node.state_name(), node.state_name())) " "
            span.dim { "on " (machine_link(&node.machine)) }
        }
        (why(&explained, id.as_str(), node_tone(node.state), now))
        div #layers .columns.layers data-region {
            (coarse(&node, now))
            (work(run.as_ref(), now))
            @if node.state != NodeState::Deleted { (observed(&node, site_answered, now)) }
        }
        div #stages .columns data-region {
            @if let Some(run) = &run { (steps(run, "Steps", now)) }
            @if node.state != NodeState::Deleted { (agent(&node, &name, enrolled, now)) }
        }
        (history.draw(&format!("/nodes/{id}"), now))
    };
    let title = format!("{} {id}", node.state_name());
    let of_machine = format!("machine_id={}", node.machine);
    let live = Some(PageStream::changes(&of_machine, drawn_at));
    Ok(Frame { title: &title, section: Section::Nodes, live, body }.answer(StatusCode::OK))
}

fn words(text: &str) -> Option<Markup> {
    (!text.is_empty()).then(|| html! { (clean_text(text)) })
}

fn coarse(node: &Node, now: Timestamp) -> Markup {
    html! {
        section aria-labelledby="coarse-title" {
            h2 #coarse-title { "Node" }
            (facts(&[
                ("state", Some(record_state_badge(node.state_name(), node.state_name()))),
                ("because", words(&node.reason)),
                ("quarantined for", node.quarantine.map(Quarantine::as_str).and_then(words)),
                ("moved by", words(node.moved_by.as_str())),
                ("in this state", Some(relative_time(node.head.since, now))),
                ("site", node.site.as_ref().map(|site| html! { (site) })),
                ("version", Some(html! { (node.head.version) })),
                ("made", Some(html! { (format_utc(node.head.created_at)) })),
            ]))
        }
    }
}

fn work(run: Option<&Run>, now: Timestamp) -> Markup {
    let Some(run) = run else {
        return html! {
            section aria-labelledby="work-title" {
                h2 #work-title { "Work on it" }
                p { "There was none, or it has been cleared away." }
            }
        };
    };
    let failure = run.progress.failure.as_ref();
    let fault = failure.map(|failure| &failure.fault);
    html! {
        section aria-labelledby="work-title" {
            h2 #work-title { "Work on it" }
            (facts(&[
                ("workflow state", Some(workflow_badge(run.progress.workflow).draw())),
                ("workflow", words(&workflow_kind(run))),
                ("operation", Some(run_link(&run.spec.id))),
                ("step", words(&run.current_step())),
                ("failed", fault.and_then(|fault| words(&fault.message))),
                ("attempts", failure.map(|failure| html! { (failure.attempts) })),
                ("fault", fault.map(|fault| html! { (fault_link(fault.code)) ", " (fault.class().as_str()) })),
                ("asked for by", words(&run.spec.initiator)),
                ("created", Some(relative_time(run.spec.created_at, now))),
            ]))
        }
    }
}

fn observed(node: &Node, asked_at: Option<Timestamp>, now: Timestamp) -> Markup {
    html! {
        section aria-labelledby="observed-title" {
            h2 #observed-title { "MAAS has its machine" }
            @if let Some(observation) = &node.maas {
                @let fits = is_expected_maas_state(node.state, observation.state);
                (facts(&[
                    ("as", Some(html! { (observation.state.as_str()) " " (expected_mark(fits)) })),
                    ("says", words(&observation.message)),
                    ("power", observation.powered_on.map(|on| html! { (if on { "on" } else { "off" }) })),
                    ("system id", words(&node.system_id)),
                    ("since", Some(relative_time(observation.at, now))),
                    ("asked", asked_at.map(|at| relative_time(at, now))),
                ]))
            } @else if node.site.is_some() {
                p { "It was not looked for yet." }
            } @else {
                p { "No MAAS manages it." }
            }
        }
    }
}

/// The mark of a state in MAAS that fits the node's state, or does not.
fn expected_mark(fits: bool) -> Markup {
    let (tone, sign, message) = match fits {
        true => (Tone::Green, "✓", "expected"),
        false => (Tone::Red, "×", "not expected"),
    };
    html! { span class={ "mark " (tone.class()) } { span aria-hidden="true" { (sign) " " } (message) } }
}

fn agent(node: &Node, name: &NodeHeartbeat, enrolled: bool, now: Timestamp) -> Markup {
    let known = node.agent.as_ref();
    html! {
        section aria-labelledby="agent-title" {
            h2 #agent-title { "Agent" }
            @if known.is_none() && name.at.is_none() { p { "No agent has enrolled yet." } }
            @if known.is_some() && !enrolled { p { "It is not enrolled any more." } }
            (facts(&[
                ("last heartbeat", name.at.map(|at| relative_time(at, now))),
                ("complains of", words(&name.problems)),
                ("host", known.and_then(|agent| words(&agent.hostname))),
                ("version", known.and_then(|agent| words(&agent.version))),
                ("serial", known.and_then(|agent| words(&agent.serial))),
                ("enrolled", known.map(|agent| relative_time(agent.enrolled_at, now))),
            ]))
        }
    }
}
