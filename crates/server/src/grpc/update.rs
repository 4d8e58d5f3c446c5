//! Partial updates: the change that an Update call requests.

use engine::Change;
use model::refusal::Refusal;
use proto::field_mask::{self, UnknownPath};
use proto::{FieldMask, Name};
use std::sync::Arc;

/// The change that a request with an update mask makes to a stored object. It runs in the
/// transaction that writes the object. `writable` names the fields that clients may change.
pub(super) fn change<S, M, D>(
    requested: M,
    mask: Option<FieldMask>,
    writable: &'static [&'static str],
    to_message: impl Fn(&S) -> M + Send + Sync + 'static,
    from_message: impl Fn(Option<M>) -> Result<D, Refusal> + Send + Sync + 'static,
) -> Change<S, D>
where
    M: Name + Clone + Default + 'static,
{
    Arc::new(move |stored| {
        let stored = to_message(stored);
        let message = field_mask::updated(&stored, &requested, mask.as_ref(), writable);
        from_message(Some(message.map_err(unknown_path)?))
    })
}

fn unknown_path(unknown: UnknownPath) -> Refusal {
    let path: String = unknown.path.chars().take(64).collect();
    let problem = format!("names {path:?}, which no client can change");
    Refusal::invalid("update_mask", problem, format!("use one of {}", unknown.known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::{Machine, MachineSpec};

    #[test]
    fn a_path_that_cannot_be_changed_is_refused_with_the_possible_ones() {
        for (path, known) in [("status", "labels, spec"), ("spec.shoe", "spec.ssh_endpoint, ")] {
            let mask = FieldMask { paths: vec![path.to_string()] };
            let spec = Some(MachineSpec::default());
            let requested = Machine { spec, ..Default::default() };
            let change = change::<Machine, Machine, Machine>(
                requested,
                Some(mask),
                &["labels", "spec"],
                Machine::clone,
                |message| Ok(message.unwrap_or_default()),
            );
            let refusal = change(&Machine::default()).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("update_mask"));
            assert!(refusal.message.contains(known), "{}", refusal.message);
        }
    }
}
