//! The fleet: first the problems and the commands to type, then the counts, then every machine.

use super::badge::{Tone, condition_mark, effective_state_badge, machine_badge, never_mark};
use super::clock::relative_time;
use super::error_page::PageResult;
use super::frame::{Frame, PageStream, Section, command, fault_link, machine_link, run_link};
use super::list::{List, PAGE_SIZE, unreadable_note};
use super::summary::Summary;
use super::text::clean_text;
use super::{Console, QueryParams, queries};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use engine::{Attention, AttentionItem, Explained};
use maud::{Markup, html};
use model::condition::ConditionType;
use model::filter::FilterSubject;
use model::id::MachineId;
use model::machine::view::EffectiveState;
use model::machine::{Labels, Machine};
use model::time::Timestamp;
use model::why::{ListedObject, Urgency};
use store::MachinePage;

const LIST: List = List {
    title: "Fleet",
    section: Section::Fleet,
    address: "/",
    subject: FilterSubject::Machine,
    example: "effective_state=ATTENTION AND labels.env=prod",
    from: "after",
};

/// The number of problems at the top; `farrier why` lists the rest.
const MAX_TROUBLE: usize = 8;

/// The number of objects that are named beside their cause; `farrier why -o json` has all ids.
const MAX_EXPLAINED: usize = 24;

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
    let mut summary = console.summary.get(engine).await?;
    let first = after.is_none();
    let text = requested.get("filter").map_or("", |text| text.trim());
    let page = engine.machines().list(filter, after.map(|id| id.to_string()), PAGE_SIZE).await?;
    if first && page.next.is_none() {
        let selected = ORDER.into_iter().find(|state| text == selects(*state));
        if text.is_empty() || selected.is_some() {
            summary.corrected_by(selected, &page.machines);
        }
    }
    let attention = match first && text.is_empty() {
        true => Some(console.attention().await?),
        false => None,
    };
    let body = html! {
        h1.vh { "Fleet" }
        @if let Some(attention) = &attention { (draw_trouble(attention, now)) }
        (counts(&summary, text))
        (LIST.filter_box(text))
        div #list data-region {
            (unreadable_note(&page.unreadable))
            (table(&page))
            (LIST.next_page(text, page.next.as_deref(), first))
        }
    };
    let live = Some(PageStream::changes("", drawn_at));
    let title = title(attention.as_ref());
    Ok(Frame { title: &title, section: Section::Fleet, live, body }.answer(StatusCode::OK))
}

impl Console {
    async fn attention(&self) -> store::Result<Attention> {
        let mut attention = self.engine.attention(MAX_TROUBLE, self.secrets.as_ref()).await?;
        // Whoever may open a page may see the whole fleet.
        if let Some(end) = &self.audit_end {
            end.list_alarm(&mut attention);
        }
        Ok(attention)
    }
}

/// The page title, which shows in the browser tab: the same count as the headline.
fn title(attention: Option<&Attention>) -> String {
    let needed = attention.filter(|attention| !attention.items.is_empty());
    needed.map_or_else(|| "Fleet".into(), count_words)
}

/// How many causes need a person.
fn count_words(attention: &Attention) -> String {
    let count = attention.urgencies().count();
    let more = if attention.more { "+" } else { "" };
    let need = if count == 1 { "needs" } else { "need" };
    format!("! {count}{more} {need} a person")
}

fn draw_trouble(attention: &Attention, now: Timestamp) -> Markup {
    html! {
        section #trouble data-region aria-labelledby="trouble-title" {
            @if attention.items.is_empty() {
                div.why.green {
                    p.headline #trouble-title { "✓ Nothing needs you." }
                }
            } @else {
                div.why.orange {
                    p.headline #trouble-title { (headline(attention)) }
                    (trouble_table(attention, now))
                    p.more {
                        @if attention.more || !attention.rest.is_empty() {
                            "All of them: " (command("farrier why"))
                        }
                    }
                }
            }
        }
    }
}

/// Counts what needs a person, by urgency. What one cause explains is one.
fn headline(attention: &Attention) -> String {
    let all: Vec<Urgency> = attention.urgencies().collect();
    let of = |urgency: Urgency| {
        let count = all.iter().filter(|one| **one == urgency).count();
        let words = match urgency {
            Urgency::MayBeDamaged => "may be damaged",
            Urgency::Stopped => "stopped",
            Urgency::OutOfService => "out of service",
            Urgency::Overdue => "overdue",
            Urgency::Degraded => "degraded",
        };
        (count > 0).then(|| format!("{count} {words}"))
    };
    let counts: Vec<String> = Urgency::ALL.into_iter().filter_map(of).collect();
    format!("{}: {}", count_words(attention), counts.join(", "))
}

fn trouble_table(attention: &Attention, now: Timestamp) -> Markup {
    html! {
        div.scroll {
            table {
                caption.vh { "What needs a person, worst first" }
                thead { tr {
                    th scope="col" { "Object" } th scope="col" { "What is wrong" }
                    th scope="col" { "Since" } th scope="col" { "Type next" }
                } }
                tbody {
                    @for AttentionItem { id, kind, explained, explains, .. } in &attention.items {
                        @let why = &explained.explanation;
                        tr {
                            th scope="row" { (object_link(kind, id)) }
                            td.words {
                                (clean_text(reason(explained)))
                                @if let Some(machine) = explained.machine_id.as_ref()
                                    .filter(|machine| machine.as_str() != id) {
                                    " " span.dim { "on " (machine_link(machine)) }
                                }
                                @if let Some(code) = why.fault {
                                    " " span.dim { "(" (fault_link(code)) ")" }
                                }
                                (explained_objects(explains))
                            }
                            td.when { @if let Some(at) = why.since { (relative_time(at, now)) } }
                            td { @if let Some(next) = why.next_command() { (command(next)) } }
                        }
                    }
                }
            }
        }
    }
}

/// The objects that a cause explains: their number, and a link to each.
fn explained_objects(explains: &[ListedObject]) -> Markup {
    html! {
        @if !explains.is_empty() {
            " " span.dim {
                "It explains " (explains.len()) ": "
                @for (index, one) in explains.iter().take(MAX_EXPLAINED).enumerate() {
                    @if index > 0 { ", " }
                    (object_link(one.kind, &one.id))
                }
                @if explains.len() > MAX_EXPLAINED {
                    ", and " (explains.len() - MAX_EXPLAINED) " more"
                }
            }
        }
    }
}

/// The page of the object. Sites have none.
fn object_link(kind: &str, id: &str) -> Markup {
    let folder = match kind {
        "machine" => "machines",
        "operation" => "operations",
        "rack" => "racks",
        "switch" => "switches",
        "power_shelf" => "power-shelves",
        "node" => "nodes",
        _ => return html! { (id) },
    };
    html! { a href=(format!("/{folder}/{id}")) { (id) } }
}

/// The headline if it warns of damage or there is no failure, else the failure.
fn reason(why: &Explained) -> &str {
    let explanation = &why.explanation;
    match explanation.failed.is_empty() || explanation.may_be_damaged {
        true => &explanation.headline,
        false => &explanation.failed,
    }
}

fn counts(summary: &Summary, filter: &str) -> Markup {
    html! {
        nav #counts .counts data-region aria-label="Machines by effective state" {
            a.count href="/" aria-current=[filter.is_empty().then_some("true")] {
                span.what { "all" }
                span.number { (summary.total) @if summary.more { "+" } }
                span.dim { "machines" }
            }
            @for state in ORDER {
                (count(state, summary.count(state), summary.deviating(state), filter))
            }
        }
    }
}

/// The filter that selects the machines in a state.
fn selects(state: EffectiveState) -> String {
    format!("effective_state={}", state.as_str())
}

/// The machines in a state, and how many of them are not as they should be in it.
fn count(state: EffectiveState, number: usize, deviating: usize, filter: &str) -> Markup {
    let badge = effective_state_badge(state);
    let selects = selects(state);
    let well = number - deviating.min(number);
    let (sign, tone) = match (number, deviating) {
        (0, _) => (badge.sign, "none"),
        (_, 0) => (badge.sign, badge.tone.class()),
        _ => ("!", Tone::Orange.class()),
    };
    html! {
        a class={ "count " (tone) } href=(LIST.with_filter(&selects))
            aria-current=[(filter == selects).then_some("true")] title=(badge.action) {
            span.what { span aria-hidden="true" { (sign) " " } (badge.label) }
            span.number { (number) }
            @if deviating == 0 {
                span.dim { (badge.meaning) }
            } @else {
                span.dim { (well) " " (badge.meaning) ", " (deviating) " with a problem" }
            }
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
    let badge = machine_badge(machine);
    let known = |condition| condition_mark(condition, machine.conditions.get(condition));
    html! {
        tr {
            th scope="row" { (machine_link(&machine.id)) }
            td { (badge.draw()) span.dim { " " (badge.meaning) } }
            td { (machine.phase.as_str()) }
            td { (known(ConditionType::Reachable)) }
            td { (known(ConditionType::BmcReachable)) }
            td { @if machine.is_never_imaged() { (never_mark()) } @else {
                (known(ConditionType::Provisioned)) } }
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
    use model::filter::Filter;

    #[test]
    fn label_links_are_valid_filters() {
        for value in ["prod", "a b", "say \"x\"", "back\\slash", ""] {
            let text = format!("labels.key={}", quoted(value));
            let filter = Filter::parse(&text, FilterSubject::Machine).unwrap();
            assert_eq!(filter.terms[0].values, [value]);
        }
    }

    #[test]
    fn headline_counts_the_problems_by_urgency() {
        let item = |urgency| AttentionItem {
            id: "m-1".into(),
            kind: "machine",
            urgency,
            explained: Explained::default(),
            explains: Vec::new(),
        };
        let of = |urgencies: &[Urgency], rest: &[Urgency], more| {
            let items = urgencies.iter().map(|urgency| item(*urgency)).collect();
            let attention = Attention { items, rest: rest.to_vec(), more };
            // The title and the headline are one reading.
            let (title, headline) = (title(Some(&attention)), headline(&attention));
            assert!(headline.starts_with(&title), "{title}: {headline}");
            headline
        };
        assert_eq!(title(Some(&Attention::default())), "Fleet");
        assert_eq!(title(None), "Fleet");
        assert_eq!(of(&[Urgency::Stopped], &[], false), "! 1 needs a person: 1 stopped");
        // Problems that are not shown are counted too.
        assert_eq!(
            of(&[Urgency::MayBeDamaged, Urgency::Overdue], &[Urgency::Overdue], true),
            "! 3+ need a person: 1 may be damaged, 2 overdue"
        );
    }

    #[test]
    fn a_cause_links_to_what_it_explains() {
        let object = |number| ListedObject::new("machine", format!("m-{number}"));
        let many: Vec<ListedObject> = (0..MAX_EXPLAINED + 2).map(object).collect();
        let shown = explained_objects(&many).into_string();
        for words in ["It explains 26: ", "href=\"/machines/m-0\"", ", and 2 more"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert_eq!(explained_objects(&[]).into_string(), "");
    }

    #[test]
    fn a_count_tells_what_is_well_from_what_is_not() {
        let mixed = count(EffectiveState::Idle, 8, 6, "").into_string();
        assert!(mixed.contains("2 healthy, 6 with a problem"), "{mixed}");
        assert!(mixed.contains("orange") && !mixed.contains("green"), "{mixed}");
        let well = count(EffectiveState::Idle, 8, 0, "").into_string();
        assert!(well.contains("healthy") && !well.contains("problem"), "{well}");
    }
}
