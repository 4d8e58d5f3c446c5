//! Texts for a caller who sees a part of the fleet: the ids of other objects are hidden in them.
//!
//! What Farrier writes about an object names the operations, nodes, racks and devices that it has
//! to do with. Their ids show their kind, so each is found in a text; whether the object still
//! exists is not asked, and so cannot be learned. Ids of machines have no form: a text that is kept
//! names no machine but that of its object.

use crate::id::{NodeId, PowerShelfId, RackId, RunId, SiteId, SwitchId};
use std::collections::BTreeSet;

/// Stands behind the prefix in place of the rest of an id.
const HIDDEN: &str = "(hidden)";

/// The ids of operations, nodes, racks, devices and sites in a text.
pub fn ids_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !is_of_id(c)).map(trimmed).filter(|word| prefix(word).is_some())
}

/// The text with every id hidden that is not among those that the caller may see.
pub fn hide_ids(text: &str, visible: &BTreeSet<String>) -> String {
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive(|c: char| !is_of_id(c)) {
        let word = trimmed(part.trim_end_matches(|c: char| !is_of_id(c)));
        let (before, behind) = part.split_once(word).unwrap_or((part, ""));
        match prefix(word).filter(|_| !visible.contains(word)) {
            Some(prefix) => shown.extend([before, prefix, HIDDEN, behind]),
            None => shown.push_str(part),
        }
    }
    shown
}

/// True if something was hidden in the text: it is no command that can be typed.
pub fn hides(text: &str) -> bool {
    text.contains(HIDDEN)
}

const fn is_of_id(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// A word without the full stops and dashes around it.
fn trimmed(word: &str) -> &str {
    word.trim_start_matches(['.', '_', '-']).trim_end_matches('.')
}

/// The prefix of an id, with its dash; none for other words.
fn prefix(word: &str) -> Option<&str> {
    // The ids that Farrier makes begin with the time, and it with a digit.
    let made = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let (_, rest) = word.split_once('-')?;
    let is_id = (RunId::parse(word).is_ok() || NodeId::parse(word).is_ok()) && made(rest)
        || RackId::parse(word).is_ok()
        || SwitchId::parse(word).is_ok()
        || PowerShelfId::parse(word).is_ok()
        || SiteId::parse(word).is_ok();
    is_id.then(|| &word[..word.len() - rest.len()])
}
