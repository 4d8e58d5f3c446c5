//! A match over a tuple of enums must name every variant: a catch-all arm would silently accept a
//! new one. Clippy's `wildcard_enum_match_arm` only checks a match over a single enum.
//!
//! A match is checked when an arm is a tuple pattern that names a variant, `(State::Ready, _)`. A
//! catch-all arm is `_`, a plain name, or a tuple of nothing but `_`, `..` and names, without a
//! guard.

use super::Finding;
use super::source::{Source, body_start, is_word, line_of, matching_brace, word_starts};

/// External enums, which may get new variants.
const EXTERNAL_ENUMS: [&str; 4] = ["ErrorKind", "Ordering", "StatusCode", "Value"];

/// One arm: the start of its pattern, and the pattern with its guard.
struct Arm {
    at: usize,
    pattern: String,
}

pub fn check(source: &Source) -> Vec<Finding> {
    if source.is_test_file() {
        return Vec::new();
    }
    let chars: Vec<char> = source.code.chars().collect();
    word_starts(&chars, "match")
        .into_iter()
        .filter_map(|at| catch_all(&chars, at))
        .map(|at| line_of(&chars, at))
        .filter(|line| !source.is_test_line(*line))
        .map(|line| {
            let wrong = "a catch-all arm in a match over a tuple of enums";
            Finding::new(&source.path, line, wrong, "name the variants that it takes")
        })
        .collect()
}

/// The forbidden catch-all arm of the match at this position.
fn catch_all(chars: &[char], at: usize) -> Option<usize> {
    let open = body_start(chars, at)?;
    let arms = arms(chars, open + 1, matching_brace(chars, open));
    arms.iter().find(|arm| names_variant_in_tuple(&arm.pattern))?;
    arms.iter().find(|arm| is_catch_all(&arm.pattern)).map(|arm| arm.at)
}

fn arms(chars: &[char], from: usize, to: usize) -> Vec<Arm> {
    let mut arms = Vec::new();
    let mut at = skip_space(chars, from, to);
    while let Some(arrow) = find(chars, at, to, &['=', '>']) {
        arms.push(Arm { at, pattern: chars[at..arrow].iter().collect() });
        let body = skip_space(chars, arrow + 2, to);
        let end = match chars.get(body) {
            Some('{') => matching_brace(chars, body) + 1,
            Some(_) | None => find(chars, body, to, &[',']).unwrap_or(to),
        };
        at = skip_space(chars, end, to);
        if chars.get(at) == Some(&',') {
            at = skip_space(chars, at + 1, to);
        }
    }
    arms
}

/// The next position of these characters outside of all brackets.
fn find(chars: &[char], from: usize, to: usize, what: &[char]) -> Option<usize> {
    let mut depth = 0usize;
    for at in from..to {
        match chars[at] {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 && chars[at..to].starts_with(what) => return Some(at),
            _ => {}
        }
    }
    None
}

fn skip_space(chars: &[char], from: usize, to: usize) -> usize {
    (from..to).find(|at| !chars[*at].is_whitespace()).unwrap_or(to)
}

/// True if a tuple pattern names a variant as `Enum::Variant`.
fn names_variant_in_tuple(pattern: &str) -> bool {
    let pattern = pattern.trim_start_matches(['|', '&', ' ', '\n']);
    pattern.starts_with('(')
        && pattern.match_indices("::").any(|(at, _)| {
            let before = pattern[..at].rsplit(|c| !is_word(c)).next().unwrap_or_default();
            let capital = |text: &str| text.starts_with(|c: char| c.is_ascii_uppercase());
            capital(before) && capital(&pattern[at + 2..]) && !EXTERNAL_ENUMS.contains(&before)
        })
}

fn is_catch_all(pattern: &str) -> bool {
    let pattern = pattern.trim();
    match pattern.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(parts) => parts.split(',').all(|part| matches_anything(part.trim())),
        None => matches_anything(pattern),
    }
}

/// True if a pattern without brackets accepts every value: nothing, `_`, `..` or a plain name.
fn matches_anything(pattern: &str) -> bool {
    let is_name = pattern.starts_with(|c: char| c.is_ascii_lowercase())
        && pattern.chars().all(is_word)
        && !["true", "false"].contains(&pattern);
    is_name || ["", "_", ".."].contains(&pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(arms: &str) -> Vec<usize> {
        let text = format!("fn a() {{\n    match (a, b) {{\n{arms}\n    }}\n}}\n");
        let source = Source::parse("crates/model/src/a.rs", &text);
        check(&source).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_catch_all_beside_a_variant_in_a_tuple_is_found() {
        for wild in ["_", "(_, _)", "(..)", "other", "(_, ..)", "(state, _)", "(a, b)"] {
            let arms = format!("(State::Ready, true) => 1,\n{wild} => 2,");
            assert_eq!(lines(&arms), [4], "{wild}");
        }
        assert_eq!(lines("(S::A | S::B { .. }, x) if x > 1 => { a(b, c) }\n_ => {}"), [4]);
        assert_eq!(lines("(Some(State::A), _) => f(|x| x),\n_ => 2,"), [4]);
        assert_eq!(lines("_ => 2,\n(State::A, 1) => 1,"), [3]);
    }

    #[test]
    fn the_rest_is_left_to_the_compiler_and_clippy() {
        for arms in [
            "(State::Ready, true) => 1,\n(State::Ready | State::Error, _) => 2,",
            "(State::Ready, true) => 1,\n_ if late => 2,\n(_, false) => 3,",
            "(Some(a), None) => 1,\n_ => 2,",
            "(ErrorKind::NotFound, true) => 1,\n_ => 2,",
            "State::Ready => 1,\n_ => 2,",
            "(1, 2) => f(State::Ready),\n_ => State::Error,",
            "(1, true) => match x {\n(State::A, 1) => 1,\n(State::A | State::B, _) => 2,\n},\n_ => 2,",
        ] {
            assert!(lines(arms).is_empty(), "{arms}");
        }
    }

    #[test]
    fn an_inner_match_is_checked_by_itself() {
        let inner = "A => match x {\n(State::A, 1) => 1,\n_ => 2,\n},\nB => 1,";
        assert_eq!(lines(inner), [5]);
    }

    #[test]
    fn tests_are_free() {
        let text =
            "#[cfg(test)]\nmod tests {\nfn a() { match b { (State::A, 1) => 1, _ => 2 } }\n}\n";
        assert!(check(&Source::parse("crates/model/src/a.rs", text)).is_empty());
        let text = "fn a() { match b { (State::A, 1) => 1, _ => 2 } }\n";
        assert!(check(&Source::parse("crates/model/tests/model/a.rs", text)).is_empty());
        assert_eq!(check(&Source::parse("crates/model/src/a.rs", text)).len(), 1);
    }
}
