//! Checks the refusal reasons, which clients compare: each must be in the table of
//! docs/api-errors.md with its gRPC code, and the table must have no others. A reason must be a
//! literal where the refusal is created, so that a search finds it.

use super::Finding;
use super::source::{Source, is_word, numbered};

/// The page with the table.
pub const PAGE: &str = "docs/api-errors.md";

/// The file that defines refusals: the only one that may pass a reason as a variable.
const REFUSAL_FILE: &str = "crates/model/src/refusal.rs";

/// The two ways to create a refusal.
const PRECONDITION: &str = "Refusal::precondition(";
const KIND: &str = "RefusalKind::";

/// The kinds of refusal, and the gRPC code of each.
const CODES: [(&str, &str); 5] = [
    ("Invalid", "INVALID_ARGUMENT"),
    ("NotFound", "NOT_FOUND"),
    ("Precondition", "FAILED_PRECONDITION"),
    ("Exists", "ALREADY_EXISTS"),
    ("Gone", "OUT_OF_RANGE"),
];

/// A reason, its gRPC code, and its position in the code or in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    word: String,
    code: String,
    path: String,
    line: usize,
}

/// The reasons of a file, and findings where a reason is not a literal.
pub fn find_reasons(source: &Source) -> (Vec<Reason>, Vec<Finding>) {
    let ours = source.path.starts_with("crates/") && source.path.contains("/src/");
    if !ours || source.is_test_file() {
        return Default::default();
    }
    let mut reasons = Vec::new();
    let mut findings = Vec::new();
    for made in refusals(source) {
        match made.reason {
            Some(name) => {
                let (code, path) = (made.code.to_string(), source.path.clone());
                reasons.push(Reason { word: name, code, path, line: made.line });
            }
            None if source.path == REFUSAL_FILE => {}
            None => findings.push(Finding::new(
                &source.path,
                made.line,
                "a refusal whose reason is not written here",
                "write the word where the refusal is made: it is held against the table",
            )),
        }
    }
    (reasons, findings)
}

/// A place where a refusal is created; `word` is none if the reason is not a literal.
struct RefusalSite {
    line: usize,
    code: &'static str,
    reason: Option<String>,
}

fn refusals(source: &Source) -> Vec<RefusalSite> {
    let text: Vec<char> = source.text.chars().collect();
    let made = |at: usize, code, argument: usize| {
        let line = source.code[..at].matches('\n').count() + 1;
        // Blanking keeps the character positions but not the byte positions.
        let position = source.code[..argument].chars().count();
        (!source.is_test_line(line)).then(|| RefusalSite {
            line,
            code,
            reason: string_literal(&text[position..]),
        })
    };
    let preconditions = source
        .code
        .match_indices(PRECONDITION)
        .filter_map(|(at, found)| made(at, "FAILED_PRECONDITION", at + found.len()));
    let others = source.code.match_indices(KIND).filter_map(|(at, found)| {
        let rest = &source.code[at + found.len()..];
        let kind = &rest[..rest.find(|c| !is_word(c))?];
        let (_, code) = CODES.into_iter().find(|(name, _)| *name == kind)?;
        // Only as an argument: elsewhere a kind is compared.
        let comma = rest[kind.len()..].starts_with(',');
        comma.then(|| made(at, code, at + found.len() + kind.len() + 1)).flatten()
    });
    preconditions.chain(others).collect()
}

/// The string literal that starts here, after white space.
fn string_literal(text: &[char]) -> Option<String> {
    let mut rest = text.iter().skip_while(|c| c.is_whitespace());
    (rest.next() == Some(&'"')).then(|| rest.take_while(|c| **c != '"').collect())
}

/// The rows of the table: `| REASON | CODE | …`, the reason in backticks.
fn parse_table(page: &str) -> Vec<Reason> {
    let row = |(line, text): (usize, &str)| {
        let mut cells = text.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        let is_reason = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let (name, code) = (name.to_string(), cells.next()?.to_string());
        is_reason.then(|| Reason { word: name, code, path: PAGE.into(), line })
    };
    numbered(page).filter_map(row).collect()
}

/// Finds reasons that are not in the table, rows without a reason in the code, and codes that
/// differ.
pub fn check(page: &str, message: &[Reason]) -> Vec<Finding> {
    let table = parse_table(page);
    let unwritten = message.iter().filter_map(|one| {
        let wrong = match table.iter().find(|row| row.word == one.word) {
            None => format!("the reason `{}` is not in {PAGE}", one.word),
            Some(row) if row.code != one.code => {
                format!("the reason `{}` comes with {}, not {}", one.word, one.code, row.code)
            }
            Some(_) => return None,
        };
        Some(Finding::new(&one.path, one.line, wrong, "mend its row in the table of reasons"))
    });
    let unsaid = table.iter().enumerate().filter_map(|(index, row)| {
        let wrong = match message.iter().any(|one| one.word == row.word) {
            false => format!("nobody refuses with `{}`", row.word),
            true if table[..index].iter().any(|other| other.word == row.word) => {
                format!("`{}` is here twice", row.word)
            }
            true => return None,
        };
        Some(Finding::new(PAGE, row.line, wrong, "remove the row"))
    });
    unwritten.chain(unsaid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "crates/model/src/sample.rs";

    fn read(path: &str, text: &str) -> (Vec<(String, String, usize)>, Vec<usize>) {
        let (reasons, findings) = find_reasons(&Source::parse(path, text));
        let reported = |one: Reason| (one.word, one.code, one.line);
        (
            reasons.into_iter().map(reported).collect(),
            findings.into_iter().map(|finding| finding.line).collect(),
        )
    }

    #[test]
    fn reasons_are_found_where_refusals_are_made() {
        let text = "// §\nfn a() {\n    Refusal::precondition(\"BUSY\", said);\n    Refusal::precondition(\n        \
                    \"RUN_ACTIVE\",\n        said,\n    );\n    Refusal::new(RefusalKind::Exists, \"USED\", said);\n    \
                    Refusal::new(\n        crate::refusal::RefusalKind::Gone,\n        \"PAST\",\n        said,\n    );\n}\n";
        let (reasons, findings) = read(SAMPLE, text);
        let found = |name: &str, code: &str, line| (name.to_owned(), code.to_owned(), line);
        assert_eq!(
            reasons,
            [
                found("BUSY", "FAILED_PRECONDITION", 3),
                found("RUN_ACTIVE", "FAILED_PRECONDITION", 4),
                found("USED", "ALREADY_EXISTS", 8),
                found("PAST", "OUT_OF_RANGE", 10),
            ]
        );
        assert!(findings.is_empty());
    }

    #[test]
    fn comparisons_and_tests_are_ignored() {
        let text = "fn a() { match kind { RefusalKind::Gone => 1, RefusalKind::Exists | RefusalKind::Invalid => 2 } }\n\
                    // Refusal::precondition(\"NO\", said)\n\
                    #[cfg(test)]\nmod tests {\n    fn b() { Refusal::precondition(\"T\", said); }\n}\n";
        assert_eq!(read(SAMPLE, text), (Vec::new(), Vec::new()));
        let made = "fn a() { Refusal::precondition(\"T\", said); }\n";
        assert_eq!(read("crates/model/tests/model/a.rs", made), (Vec::new(), Vec::new()));
        assert_eq!(read("xtask/src/a.rs", made), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_reason_must_be_a_literal_outside_its_own_file() {
        let text = "fn a() { Refusal::precondition(reason, said); }\nfn b() { Refusal::new(RefusalKind::Gone, reason, said); }\n";
        assert_eq!(read(SAMPLE, text), (Vec::new(), vec![1, 2]));
        assert_eq!(read(REFUSAL_FILE, text), (Vec::new(), Vec::new()));
    }

    #[test]
    fn table_and_code_say_the_same() {
        let reason = |name: &str, code: &str| Reason {
            word: name.into(),
            code: code.into(),
            path: SAMPLE.into(),
            line: 7,
        };
        let page = "| reason | code | means |\n|---|---|---|\n| `USED` | ALREADY_EXISTS | it is |\n| `code` | x |\n";
        assert!(check(page, &[reason("USED", "ALREADY_EXISTS")]).is_empty());
        let wrong = |page: &str, message: &[Reason]| {
            let found = check(page, message).into_iter();
            found
                .map(|one| format!("{}:{} {}", one.path, one.line, one.message))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            wrong(page, &[reason("USED", "NOT_FOUND"), reason("BUSY", "FAILED_PRECONDITION")]),
            [
                "crates/model/src/sample.rs:7 the reason `USED` comes with NOT_FOUND, not ALREADY_EXISTS",
                "crates/model/src/sample.rs:7 the reason `BUSY` is not in docs/api-errors.md",
            ]
        );
        assert_eq!(wrong(page, &[]), ["docs/api-errors.md:3 nobody refuses with `USED`"]);
        let twice = format!("{page}| `USED` | ALREADY_EXISTS | again |\n");
        let message = [reason("USED", "ALREADY_EXISTS")];
        assert_eq!(wrong(&twice, &message), ["docs/api-errors.md:5 `USED` is here twice"]);
    }
}
