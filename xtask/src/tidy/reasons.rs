//! Checks that every reason of a refusal is used. The compiler does not: the enum is public.

use super::Finding;
use super::source::numbered;
use crate::reference::Text;

/// The file with the table of reasons.
const TABLE: &str = "crates/model/src/refusal/reason.rs";

/// The reasons that no source file names.
pub fn unused(texts: &[Text]) -> Vec<Finding> {
    let sources = || texts.iter().filter(|(path, _)| path.contains("/src/") && path != TABLE);
    let table = texts.iter().filter(|(path, _)| path == TABLE);
    let rows = table.flat_map(|(_, text)| numbered(text)).filter_map(|(line, text)| {
        let (name, rest) = text.trim().split_once(" = \"")?;
        let is_row = rest.contains('"') && name.chars().all(char::is_alphanumeric);
        is_row.then_some((line, name))
    });
    let is_used = |name: &str| {
        let used = format!("Reason::{name}");
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
        sources().any(|(_, text)| text.split(&used).skip(1).any(ends))
    };
    let unused = rows.filter(|(_, name)| !is_used(name)).map(|(line, name)| {
        let wrong = format!("no code refuses with `{name}`");
        Finding::new(TABLE, line, wrong, "delete its row, and run `cargo xtask reference`")
    });
    unused.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_nobody_uses_is_found() {
        let table = "reasons! {\n    Busy = \"BUSY\", Precondition,\n        \"a\", \"b\";\n}\n";
        let used = |code: &str| {
            let code = ("crates/model/src/a.rs".to_owned(), code.to_owned());
            unused(&[(TABLE.to_owned(), table.to_owned()), code]).len()
        };
        assert_eq!(used("Refusal::new(Reason::Busy, text)"), 0);
        assert_eq!(used("Refusal::new(Reason::BusyToo, text)"), 1);
        assert_eq!(used(""), 1);
    }
}
