//! Updates: a command reads an object, changes what its arguments name, and sends only the
//! difference. So it neither undoes the change of another client nor erases a field of a newer
//! server.

use crate::args::VersionArgs;
use crate::client::Client;
use crate::text::one_line;
use proto::{FieldMask, Name, field_mask};

/// The fields that clients may change, for most objects.
pub const WRITABLE: &[&str] = &["labels", "spec"];

/// An object after an update, and whether the update has changed it.
pub struct Updated<M> {
    pub object: M,
    pub is_changed: bool,
}

impl<M> Updated<M> {
    /// The sentence for people.
    pub fn describe(&self, client: &Client, id: &str) -> String {
        let id = one_line(id);
        match self.is_changed {
            true => format!("{id} {}", client.outcome("updated")),
            false => format!("{id} has these values already; nothing was changed"),
        }
    }
}

/// True if the arguments change anything.
pub fn is_changed<M: Name>(before: &M, after: &M, writable: &[&str]) -> bool {
    !field_mask::changed(before, after, writable).paths.is_empty()
}

/// The mask of what the arguments change. None: nothing, and no version is to be checked.
pub fn changes<M: Name>(
    before: &M,
    after: &M,
    writable: &[&str],
    version: VersionArgs,
) -> Option<FieldMask> {
    let mut mask = field_mask::changed(before, after, writable);
    if mask.paths.is_empty() {
        // Writing the labels as they are changes nothing, but checks the version.
        mask.paths.extend(version.expected_version.map(|_| "labels".to_string()));
    }
    Some(mask).filter(|mask| !mask.paths.is_empty())
}
