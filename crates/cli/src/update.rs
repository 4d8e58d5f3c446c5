//! Updates: a command reads an object, changes what its arguments name, and sends only the
//! difference. So it neither undoes the change of another client nor erases a field of a newer
//! server.

use crate::args::VersionArgs;
use proto::{FieldMask, Name, field_mask};

/// The fields that clients may change, for most objects.
pub const WRITABLE: &[&str] = &["labels", "spec"];

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
