//! The fleet: first the problems and the commands to type, then the counts, then every machine.

use super::badge::{condition_mark, effective_state_badge};
use super::clock::relative_time;
use super::error_page::PageResult;
use super::frame::{Frame, PageStream, Section, command, fault_link, machine_link, run_link};
use super::list::{List, PAGE_SIZE, unreadable_note};
use super::summary::Summary;
use super::text::clean_text;
use super::{Console, QueryParams, queries};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use engine::{Engine, Explained};
use maud::{Markup, html};
use model::condition::ConditionType;
use model::filter::{Filter, FilterSubject};
use model::id::MachineId;
use model::machine::view::EffectiveState;
use model::machine::{Labels, Machine};
use model::time::Timestamp;
use store::{MachinePage, Result};

const LIST: List = List {
    title: "Fleet",
    section: Section::Fleet,
    address: "/",
    subject: FilterSubject::Machine,
    example: "effective_state=ATTENTION AND labels.env=prod",
    from: "after",
};

/// The number of machines with problems at the top; a link leads to the rest.
const MAX_TROUBLE: i64 = 8;
const ATTENTION: &str = "effective_state=ATTENTION";
const UNREACHABLE: &str = "effective_state=IDLE AND condition.Reachable=false";

/// The order of the counts: states that need an operator first.
const ORDER: [EffectiveState; 6] = [
    EffectiveState::Attention,
    EffectiveState::Blocked,
    EffectiveState::Busy,
    EffectiveState::Maintenance,
    EffectiveState::New,
    EffectiveState::Idle,
];

pub(super) async fn show(
    State(console): State<Console>,
    Query(requested): Query<QueryParams>,
) -> PageResult {
    let filter = match LIST.filter(&requested) {
        Ok(filter) => filter,
        Err(refusal) => return Ok(LIST.not_understood(&requested, &refusal)),
    };
    let after = requested.get("after").map(|id| MachineId::parse_field(id, "after")).transpose()?;
    let engine = &console.engine;
    let drawn_at = queries::read_horizon(engine).await?;
    let now = engine.now();
    let summary = console.summary.get(engine).await?;
    let first = after.is_none();
    let text = requested.get("filter").map_or("", |text| text.trim());
    let page = engine.machines().list(filter, after.map(|id| id.to_string()), PAGE_SIZE).await?;
    let failure =
        if first && text.is_empty() { Some(machines_in_trouble(engine).await?) } else { None };
    let body = html! {
        h1.vh { "Fleet" }
        @if let Some(failure) = &failure { (draw_trouble(failure, &summary, now)) }
        (counts(&summary, text))
        (LIST.filter_box(text))
        div #list data-region {
            (unreadable_note(&page.unreadable))
            (table(&page))
            (LIST.next_page(text, page.next.as_deref(), first))
        }
    };
    let live = Some(PageStream::changes("", drawn_at));
    let title = title(&summary);
    Ok(Frame { title: &title, section: Section::Fleet, live, body }.answer(StatusCode::OK))
}

/// The page title, which shows in the browser tab, counts the problems too.
fn title(summary: &Summary) -> String {
    match summary.count(EffectiveState::Attention) {
        0 => "Fleet".into(),
        1 => "! 1 needs attention".into(),
        many => format!("! {many} need attention"),
    }
}

/// Machines that need an operator, each with its explanation.
async fn machines_in_trouble(engine: &Engine) -> Result<Vec<(Machine, Explained)>> {
    let mut found = Vec::new();
    for filter in [ATTENTION, UNREACHABLE] {
        let filter = Filter::parse(filter, FilterSubject::Machine)?;
        let page = engine.machines().list(filter, None, MAX_TROUBLE).await?;
        for machine in page.machines {
            // A machine that was never probed is not a problem.
            let looked_at = machine.conditions.get(ConditionType::Reachable).is_some();
            if looked_at || machine.effective_state() == EffectiveState::Attention {
                let why = engine.explain(machine.id.as_str()).await?;
                found.push((machine, why));
            }
        }
    }
    found.truncate(MAX_TROUBLE as usize);
    Ok(found)
}

fn draw_trouble(failure: &[(Machine, Explained)], summary: &Summary, now: Timestamp) -> Markup {
    let attention = summary.count(EffectiveState::Attention);
    html! {
        section #trouble data-region aria-labelledby="trouble-title" {
            @if failure.is_empty() && summary.overdue == 0 {
                div.why.green {
                    p.headline #trouble-title { "✓ Nothing needs you: no machine needs attention, no operation is overdue." }
                }
            } @else {
                div.why.orange {
                    p.headline #trouble-title { (headline(attention, failure.len(), summary.overdue)) }
                    @if !failure.is_empty() { (trouble_table(failure, now)) }
                    p.more {
                        @if attention > failure.len() {
                            a href=(LIST.with_filter(ATTENTION)) { "all " (attention) " that need attention" }
                        }
                        @if summary.overdue > 0 {
                            a href="/operations?filter=phase%20in%20%28PENDING%2C%20RUNNING%29" {
                                "look at active operations" }
                        }
                    }
                }
            }
        }
    }
}

fn headline(attention: usize, shown: usize, overdue: usize) -> String {
    let mut parts = Vec::new();
    match attention {
        0 => {}
        1 => parts.push("1 machine needs attention".to_string()),
        many => parts.push(format!("{many} machines need attention")),
    }
    // The others in the list are ready and unreachable.
    match shown.saturating_sub(attention) {
        0 => {}
        1 => parts.push("1 ready machine does not answer".to_string()),
        many => parts.push(format!("{many} ready machines do not answer")),
    }
    match overdue {
        0 => {}
        1 => parts.push("1 operation is overdue".to_string()),
        many => parts.push(format!("{many} operations are overdue")),
    }
    format!("! {}", parts.join(", "))
}

fn trouble_table(failure: &[(Machine, Explained)], now: Timestamp) -> Markup {
    html! {
        div.scroll {
            table {
                caption.vh { "Machines that need attention" }
                thead { tr {
                    th scope="col" { "Machine" } th scope="col" { "What is wrong" }
                    th scope="col" { "Since" } th scope="col" { "Type next" }
                } }
                tbody {
                    @for (machine, why) in failure {
                        tr {
                            th scope="row" { (machine_link(&machine.id)) }
                            td.words {
                                (clean_text(reason(why)))
                                @if let Some(code) = why.explanation.fault {
                                    " " span.dim { "(" (fault_link(code)) ")" }
                                }
                            }
                            td.when { @if let Some(at) = why.explanation.since { (relative_time(at, now)) } }
                            td { (command(&type_next(machine, why))) }
                        }
                    }
                }
            }
        }
    }
}

/// The failure if there is one, otherwise the headline.
fn reason(why: &Explained) -> &str {
    if why.explanation.failed.is_empty() {
        &why.explanation.headline
    } else {
        &why.explanation.failed
    }
}

/// The first command that acts; the machine's page has the rest.
fn type_next(machine: &Machine, why: &Explained) -> String {
    let acts = why.explanation.next_commands.iter().find(|one| !one.contains(" logs "));
    acts.cloned().unwrap_or_else(|| format!("farrier why {}", machine.id))
}

fn counts(summary: &Summary, filter: &str) -> Markup {
    html! {
        nav #counts .counts data-region aria-label="Machines by effective state" {
            a.count href="/" aria-current=[filter.is_empty().then_some("true")] {
                span.what { "all" }
                span.number { (summary.total) @if summary.more { "+" } }
                span.dim { "machines" }
            }
            @for state in ORDER { (count(state, summary.count(state), filter)) }
        }
    }
}

fn count(state: EffectiveState, number: usize, filter: &str) -> Markup {
    let badge = effective_state_badge(state);
    let selects = format!("effective_state={}", state.as_str());
    let tone = if number == 0 { "none" } else { badge.tone.class() };
    html! {
        a class={ "count " (tone) } href=(LIST.with_filter(&selects))
            aria-current=[(filter == selects).then_some("true")] title=(badge.action) {
            span.what { span aria-hidden="true" { (badge.sign) " " } (badge.label) }
            span.number { (number) }
            span.dim { (badge.meaning) }
        }
    }
}

fn table(page: &MachinePage) -> Markup {
    html! {
        div.scroll {
            table.wide {
                caption.vh { "Machines by id" }
                thead { tr {
                    th scope="col" { "Machine" } th scope="col" { "State" } th scope="col" { "Phase" }
                    th scope="col" { "Reachable" } th scope="col" { "BMC" }
                    th scope="col" { "Provisioned" } th scope="col" { "In cluster" }
                    th scope="col" { "Active operation" } th scope="col" { "Labels" }
                } }
                tbody {
                    @for machine in &page.machines { (row(machine)) }
                    @if page.machines.is_empty() { tr { td colspan="9" { "No machine matches." } } }
                }
            }
        }
    }
}

fn row(machine: &Machine) -> Markup {
    let badge = effective_state_badge(machine.effective_state());
    let known = |condition| condition_mark(condition, machine.conditions.get(condition));
    html! {
        tr {
            th scope="row" { (machine_link(&machine.id)) }
            td { (badge.draw()) span.dim { " " (badge.meaning) } }
            td { (machine.phase.as_str()) }
            td { (known(ConditionType::Reachable)) }
            td { (known(ConditionType::BmcReachable)) }
            td { (known(ConditionType::Provisioned)) }
            td { (known(ConditionType::InCustomerCluster)) }
            td { @match &machine.active_run { Some(id) => (run_link(id)), None => span.dim { "–" } } }
            td.labels { (labels(machine)) }
        }
    }
}

/// Labels without links, for objects that no list filters by label.
pub(super) fn label_list(labels: &Labels) -> Markup {
    html! {
        @for (key, value) in labels { span.label { (clean_text(key)) "=" (clean_text(value)) } " " }
    }
}

/// Labels, each with a link to the machines that have it.
pub(super) fn labels(machine: &Machine) -> Markup {
    html! {
        @for (key, value) in &machine.labels {
            a.label href=(LIST.with_filter(&format!("labels.{key}={}", quoted(value)))) {
                (clean_text(key)) "=" (clean_text(value)) }
            " "
        }
    }
}

/// A value in the syntax of the filter language.
fn quoted(value: &str) -> String {
    let bare = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':');
    if !value.is_empty() && value.chars().all(bare) {
        return value.to_string();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_links_are_valid_filters() {
        for value in ["prod", "a b", "say \"x\"", "back\\slash", ""] {
            let text = format!("labels.key={}", quoted(value));
            let filter = Filter::parse(&text, FilterSubject::Machine).unwrap();
            assert_eq!(filter.terms[0].values, [value]);
        }
    }

    #[test]
    fn headline_counts_the_problems() {
        assert_eq!(headline(1, 1, 0), "! 1 machine needs attention");
        assert_eq!(headline(0, 2, 1), "! 2 ready machines do not answer, 1 operation is overdue");
        assert_eq!(headline(12, 8, 0), "! 12 machines need attention");
    }
}
