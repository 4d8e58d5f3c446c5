//! The box at the top of a page: the state, since when, whether that is normal, and the command to
//! type next.

use super::badge::Tone;
use super::clock::{format_utc, relative_time};
use super::frame::{command, facts, fault_link, machine_link, run_link};
use super::text::clean_text;
use engine::Explained;
use maud::{Markup, html};
use model::time::Timestamp;

/// `about` is the id of the page's object, which is not linked again.
pub(super) fn why(why: &Explained, about: &str, tone: Tone, now: Timestamp) -> Markup {
    let reported = &why.explanation;
    let tone = if reported.overdue { Tone::Red } else { tone };
    let words = |text: &str| (!text.is_empty()).then(|| html! { (clean_text(text)) });
    let since = reported
        .since
        .map(|at| html! { (relative_time(at, now)) span.dim { " · " (format_utc(at)) } });
    let normal = (!reported.normal.is_empty() || reported.overdue).then(|| {
        html! { (reported.normal) @if reported.overdue { " " strong.overdue { "! overdue" } } }
    });
    let run = why.run_id.as_ref().filter(|id| id.as_str() != about);
    let machine = why.machine_id.as_ref().filter(|id| id.as_str() != about);
    html! {
        section #why data-region class={ "why " (tone.class()) } aria-labelledby="headline" {
            p.headline #headline { (clean_text(&reported.headline)) }
            div.columns {
                (facts(&[
                    ("failed", words(&reported.failed)),
                    ("fault", reported.fault.map(fault_link)),
                    ("waiting for", words(&reported.waiting_for)),
                    ("last word", words(&reported.last_word)),
                    ("since", since),
                    ("normal", normal),
                    ("claimed by", why.claimed_by.as_deref().and_then(words)),
                    ("operation", run.map(run_link)),
                    ("requested by", words(&reported.requested_by)),
                    ("last operation", words(&reported.last_operation)),
                    ("last refused", words(&reported.refused)),
                    ("machine", machine.map(machine_link)),
                    ("note", words(&reported.notes.join("; "))),
                ]))
                @if !reported.next_commands.is_empty() {
                    div.next {
                        h2 { "Type next" }
                        ul { @for next in &reported.next_commands { li { (command(next)) } } }
                    }
                }
            }
        }
    }
}
