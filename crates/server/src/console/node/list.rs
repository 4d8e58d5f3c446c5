//! The list of nodes, by id, with coarse states only; a node's page has the operation on it. The
//! sites come first: one that is cut off explains the state of all its nodes.

use crate::console::badge::record_state_badge;
use crate::console::clock::relative_time;
use crate::console::error_page::PageResult;
use crate::console::frame::{Frame, PageStream, Section, machine_link, node_link};
use crate::console::list::{PAGE_SIZE, unreadable_note};
use crate::console::text::{clean_text, encode_query};
use crate::console::{Console, QueryParams, queries};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use model::filter::Filter;
use model::id::NodeId;
use model::lifecycle::Lifecycle;
use model::node::{Node, NodeState};
use model::site::Site;
use model::time::Timestamp;
use store::RecordPage;

pub(in crate::console) async fn show(
    State(console): State<Console>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let after = requested.get("after").map(|id| NodeId::parse_field(id, "after")).transpose()?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let first = after.is_none();
    let after = after.map(|id| id.to_string());
    let page = engine.nodes().list(not_deleted(), after, PAGE_SIZE as usize).await?;
    let sites = engine.sites().list(Filter::default(), None, PAGE_SIZE as usize).await?;
    let now = engine.now();
    let body = html! {
        h1 { "Nodes" }
        div #list data-region {
            (unreadable_note(&page.unreadable))
            (unreadable_note(&sites.unreadable))
            @if first && !sites.records.is_empty() { (site_table(&sites, now)) }
            div.scroll { table.wide {
                caption.vh { "Nodes" }
                thead { tr {
                    th scope="col" { "Node" } th scope="col" { "State" } th scope="col" { "Machine" }
                    th scope="col" { "Site" } th scope="col" { "Since" } th scope="col" { "Reason" }
                } }
                tbody {
                    @for node in &page.records { (row(node, now)) }
                    @if page.records.is_empty() { tr { td colspan="6" {
                        "No machine serves as a node. Make one: " code { "farrier node onboard MACHINE --site SITE" }
                    } } }
                }
            } }
            nav.pages aria-label="Pages" {
                @if !first { a href="/nodes" { "« first page" } }
                @if let Some(next) = &page.next {
                    a rel="next" href={ "/nodes?after=" (encode_query(next)) } { "next " (PAGE_SIZE) " »" }
                }
            }
        }
    };
    let live = Some(PageStream::changes("", drawn_at));
    Ok(Frame { title: "Nodes", section: Section::Nodes, live, body }.answer(StatusCode::OK))
}

/// The first page of sites; there are rarely more.
fn site_table(sites: &RecordPage<Site>, now: Timestamp) -> Markup {
    html! {
        div.scroll { table.wide {
            caption.vh { "Sites" }
            thead { tr {
                th scope="col" { "Site" } th scope="col" { "State" } th scope="col" { "Since" }
                th scope="col" { "Machines" } th scope="col" { "Alarms" }
            } }
            tbody {
                @for site in &sites.records { tr {
                    th scope="row" { (site.head.id) }
                    td { (record_state_badge(site.state_name(), site.state_name())) }
                    td.when { (relative_time(site.head.since, now)) }
                    td { @if let Some(machines) = site.machines { (machines) } }
                    td.words { @for alarm in site.alarms() { div { (clean_text(&alarm.message)) } } }
                } }
                @if sites.next.is_some() { tr { td colspan="5" { "More: " code { "farrier site list" } } } }
            }
        } }
    }
}

/// All nodes except deleted ones.
fn not_deleted() -> Filter {
    Filter::not_in_states(&[NodeState::Deleted.as_str()])
}

fn row(node: &Node, now: Timestamp) -> Markup {
    html! {
        tr {
            th scope="row" { (node_link(&node.head.id)) }
            td { (record_state_badge(node.state_name(), node.state_name())) }
            td { (machine_link(&node.machine)) }
            td { @if let Some(site) = &node.site { (site) } }
            td.when { (relative_time(node.head.since, now)) }
            td.words { (clean_text(&node.reason)) }
        }
    }
}
