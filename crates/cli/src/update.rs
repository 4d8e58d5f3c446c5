//! Updates: a command reads an object, changes what its arguments name, and sends only the
//! difference. So it neither undoes the change of another client nor erases a field of a newer
//! server.

use crate::args::VersionArgs;
use crate::client::Client;
use crate::text::one_line;
use proto::field_mask::{self, FieldDifference};
use proto::{FieldMask, Name};

/// The fields that clients may change, for most objects.
pub const WRITABLE: &[&str] = &["labels", "spec"];

/// The most characters of a value that a dry run shows.
const MAX_SHOWN: usize = 80;

/// An object after an update, and what the arguments change of it.
pub struct Updated<M> {
    pub object: M,
    pub differences: Vec<FieldDifference>,
}

impl<M> Updated<M> {
    pub const fn is_changed(&self) -> bool {
        !self.differences.is_empty()
    }

    /// The sentence for people; in a dry run with every field that would change, also those that
    /// no argument names.
    pub fn describe(&self, client: &Client, id: &str) -> String {
        let id = one_line(id);
        match (self.is_changed(), client.is_dry_run()) {
            (true, true) => format!("{id} {}\n{}", client.outcome("updated"), self.fields()),
            (true, false) => format!("{id} {}", client.outcome("updated")),
            (false, _) => format!("{id} has these values already; nothing was changed"),
        }
    }

    /// A line for each field that would change.
    pub fn fields(&self) -> String {
        let lines = self.differences.iter().map(|FieldDifference { path, before, after }| {
            let name = path.strip_prefix("spec.").unwrap_or(path);
            let (before, after) = (shown(before), shown(after));
            format!("  {}: {before} → {after}", one_line(name))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn shown(value: &str) -> String {
    let value = one_line(value);
    match value.chars().count() {
        0 => "none".into(),
        count if count > MAX_SHOWN => {
            format!("{}…", value.chars().take(MAX_SHOWN).collect::<String>())
        }
        _ => value.into_owned(),
    }
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
        // Writing a field as it is changes nothing, but checks the version.
        let any = writable.first().filter(|_| version.expected_version.is_some());
        mask.paths.extend(any.map(ToString::to_string));
    }
    Some(mask).filter(|mask| !mask.paths.is_empty())
}
