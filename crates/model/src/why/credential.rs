//! Explanations of kubeconfigs whose token or client certificate ends.

use super::{Explanation, Rank, Urgency};
use crate::time::{Timestamp, format_duration};
use std::time::Duration;

/// A kubeconfig needs a person this long before it expires.
const EXPIRY_NEAR: Duration = Duration::from_secs(14 * 86_400);

/// None: it does not expire soon.
pub fn rank_expiry(expires_at: Timestamp, now: Timestamp) -> Option<Rank> {
    let near = expires_at - EXPIRY_NEAR;
    match (now >= expires_at, now >= near) {
        // No operation on the cluster works any more.
        (true, _) => Some(Rank::new(Urgency::Stopped, expires_at)),
        (false, true) => Some(Rank::new(Urgency::Degraded, near)),
        (false, false) => None,
    }
}

/// `name` is that of the credential, which is the name of the cluster too.
pub fn explain_expiry(name: &str, expires_at: Timestamp, now: Timestamp) -> Explanation {
    let expired = now >= expires_at;
    let headline = match expired {
        true => {
            let ago = format_duration(now.since(expires_at));
            format!("the kubeconfig of cluster {name} expired {ago} ago: the cluster refuses us")
        }
        false => {
            let left = format_duration(expires_at.since(now));
            format!("the kubeconfig of cluster {name} expires in {left}")
        }
    };
    Explanation {
        headline,
        waiting_for: "a person, who stores a new kubeconfig".into(),
        since: expired.then_some(expires_at),
        next_commands: vec![
            format!("farrier credential update {name} --kubeconfig …"),
            format!("farrier cluster check {name}"),
        ],
        ..Explanation::default()
    }
}
