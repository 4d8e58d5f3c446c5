//! Notifiers whose notices are not accepted.

use super::{Explanation, Rank, Urgency};
use crate::notify::Notifier;
use crate::time::{Timestamp, format_duration};
use std::time::Duration;

/// A receiver that fails for less than this time may only be restarted.
const FAILING_AFTER: Duration = Duration::from_secs(60);

/// None: nobody needs to act. `letters`: the dead letters that there are.
pub fn rank_notifier(notifier: &Notifier, letters: i64, now: Timestamp) -> Option<Rank> {
    match (failing_since(notifier, now), letters) {
        (Some(since), _) => Some(Rank::new(Urgency::Degraded, since)),
        (None, 0) => None,
        (None, _) => Some(Rank::new(Urgency::Degraded, notifier.updated_at)),
    }
}

fn failing_since(notifier: &Notifier, now: Timestamp) -> Option<Timestamp> {
    let since = notifier.delivery.failing_since.filter(|_| !notifier.paused);
    since.filter(|since| now.since(*since) >= FAILING_AFTER)
}

pub fn explain_notifier(notifier: &Notifier, letters: i64, now: Timestamp) -> Explanation {
    let (name, delivery) = (&notifier.name, &notifier.delivery);
    let since = failing_since(notifier, now);
    let waiting = match letters {
        0 => String::new(),
        count => format!("{count} notices are dead letters"),
    };
    let headline = match since {
        Some(since) => {
            let lasts = format_duration(now.since(since));
            let waiting = if waiting.is_empty() { waiting } else { format!("; {waiting}") };
            format!("the receiver of {name} has accepted nothing for {lasts}{waiting}")
        }
        None => format!("{waiting}: the receiver of {name} did not accept them"),
    };
    let mut next_commands: Vec<String> =
        delivery.repair.iter().filter(|_| since.is_some()).cloned().collect();
    if since.is_some() {
        next_commands.push(format!("farrier notify test {name}"));
    }
    if letters > 0 {
        next_commands.push(format!("farrier notify dead-letters {name}"));
        next_commands.push(format!("farrier notify replay {name} --all"));
    }
    Explanation {
        headline,
        waiting_for: "the receiver, or a person who corrects the notifier".into(),
        failed: delivery.problem.clone(),
        since,
        next_commands,
        ..Explanation::default()
    }
}
