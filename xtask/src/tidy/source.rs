//! A Rust file as the rules see it: its text, the same text with comments and literals blanked, its
//! string literals, and which lines are tests. The blanked text keeps every line break, so line
//! numbers match.

use std::ops::RangeInclusive;
use std::path::Path;

pub struct Source {
    pub path: String,
    pub text: String,
    /// The text with comments and the contents of literals replaced by spaces.
    pub code: String,
    pub literals: Vec<Literal>,
    tests: Vec<RangeInclusive<usize>>,
}

/// A string literal: the line it starts on, and its content with every escape replaced by a space.
pub struct Literal {
    pub line: usize,
    pub text: String,
}

impl Source {
    pub fn parse(path: &str, text: &str) -> Self {
        let mut lexer = Lexer::new(text);
        lexer.run();
        let tests = test_items(&lexer.code);
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: lexer.code,
            literals: lexer.literals,
            tests,
        }
    }

    /// True if the whole file is for tests only.
    pub fn is_test_file(&self) -> bool {
        let path = Path::new(&self.path);
        let in_folder = path.components().any(|part| {
            ["tests", "benches", "examples"].iter().any(|name| part.as_os_str() == *name)
        });
        in_folder
            || path.ends_with("tests.rs")
            || self.code.trim_start().starts_with("#![cfg(test)]")
    }

    /// True if a line, counted from one, is inside an item that is only compiled for tests.
    pub fn is_test_line(&self, line: usize) -> bool {
        self.tests.iter().any(|item| item.contains(&line))
    }

    /// True if the file contains tests and code; a mere `mod tests;` does not count.
    pub fn has_inline_tests(&self) -> bool {
        self.tests.iter().any(|item| item.end() - item.start() > 1)
    }

    /// The lines of code that are not tests, with their numbers.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        numbered(&self.code).filter(|(line, _)| !self.is_test_line(*line))
    }
}

/// The lines of a text, counted from one.
pub fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The line ranges of the items under `#[cfg(test)]`.
fn test_items(code: &str) -> Vec<RangeInclusive<usize>> {
    const MARK: &str = "#[cfg(test)]";
    let chars: Vec<char> = code.chars().collect();
    code.match_indices(MARK)
        .map(|(byte, _)| {
            let start = code[..byte].chars().count();
            let after = start + MARK.len();
            let end = match body_start(&chars, after) {
                Some(open) => matching_brace(&chars, open),
                None => {
                    (after..chars.len()).find(|at| chars[*at] == ';').unwrap_or(chars.len() - 1)
                }
            };
            line_of(&chars, start)..=line_of(&chars, end)
        })
        .collect()
}

/// The brace that opens an item's body; none if the item ends with a semicolon.
pub(super) fn body_start(chars: &[char], from: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in chars.iter().enumerate().skip(from) {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

pub(super) fn matching_brace(chars: &[char], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, c) in chars.iter().enumerate().skip(open) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    chars.len() - 1
}

pub(super) fn line_of(chars: &[char], at: usize) -> usize {
    chars[..at].iter().filter(|c| **c == '\n').count() + 1
}

pub(super) fn word_starts(chars: &[char], name: &str) -> Vec<usize> {
    let name: Vec<char> = name.chars().collect();
    let bounded = |at: usize| {
        (at == 0 || !is_word(chars[at - 1]))
            && chars.get(at + name.len()).is_none_or(|c| !is_word(*c))
    };
    (0..chars.len()).filter(|at| chars[*at..].starts_with(&name) && bounded(*at)).collect()
}

/// Separates code from comments and literals in one pass.
struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    code: String,
    literals: Vec<Literal>,
}

impl Lexer {
    fn new(text: &str) -> Self {
        Self {
            chars: text.chars().collect(),
            at: 0,
            line: 1,
            code: String::with_capacity(text.len()),
            literals: Vec::new(),
        }
    }

    fn run(&mut self) {
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(),
                ('\'', _) => self.quote(),
                _ if is_word(c) => self.word(),
                _ => self.keep(),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn keep(&mut self) {
        self.step(true);
    }

    fn blank(&mut self) {
        self.step(false);
    }

    fn step(&mut self, keep: bool) {
        let Some(c) = self.peek(0) else { return };
        self.code.push(if keep || c == '\n' { c } else { ' ' });
        self.line += usize::from(c == '\n');
        self.at += 1;
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.blank();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0usize;
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('*')) => depth += 1,
                ('*', Some('/')) => depth -= 1,
                _ => {
                    self.blank();
                    continue;
                }
            }
            self.blank();
            self.blank();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        let mut literal = Literal { line: self.line, text: String::new() };
        self.keep();
        while let Some(c) = self.peek(0).filter(|c| *c != '"') {
            if c == '\\' {
                self.blank();
                literal.text.push(' ');
            } else {
                literal.text.push(c);
            }
            self.blank();
        }
        self.keep();
        self.literals.push(literal);
    }

    fn raw_string(&mut self, hashes: usize) {
        let line = self.line;
        (0..=hashes).for_each(|_| self.keep());
        let start = self.at;
        let closes = |at: usize, chars: &[char]| {
            chars[at] == '"' && (1..=hashes).all(|n| chars.get(at + n) == Some(&'#'))
        };
        while self.at < self.chars.len() && !closes(self.at, &self.chars) {
            self.blank();
        }
        let text = self.chars[start..self.at].iter().collect();
        (0..=hashes).for_each(|_| self.keep());
        self.literals.push(Literal { line, text });
    }

    /// A character literal, or a lifetime.
    fn quote(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        self.keep();
        if escaped {
            self.blank();
            self.blank();
            while self.peek(0).is_some_and(|c| c != '\'') {
                self.blank();
            }
            self.keep();
        } else if self.peek(1) == Some('\'') {
            self.blank();
            self.keep();
        }
    }

    /// A name, a keyword or a number; some names start a raw string.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.keep();
        }
        let word: String = self.chars[start..self.at].iter().collect();
        let hashes = self.chars[self.at..].iter().take_while(|c| **c == '#').count();
        if ["r", "br", "cr"].contains(&word.as_str()) && self.peek(hashes) == Some('"') {
            self.raw_string(hashes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Source {
        Source::parse("crates/model/src/sample.rs", text)
    }

    fn texts(source: &Source) -> Vec<&str> {
        source.literals.iter().map(|literal| literal.text.as_str()).collect()
    }

    #[test]
    fn comments_are_blanked() {
        let source = parse("a // one\n/* two /* three */ four */ b\n");
        assert_eq!(source.code.split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(source.code.lines().count(), 2);
    }

    #[test]
    fn strings_are_blanked_and_kept_apart() {
        let source = parse(
            "let a = \"x \\\" // y\\n\";\nlet b = r#\"raw \" {\"#; let c = br\"bytes\"; r#type",
        );
        assert_eq!(texts(&source), ["x   // y ", "raw \" {", "bytes"]);
        assert_eq!(source.literals[1].line, 2);
        assert!(!source.code.contains("raw") && !source.code.contains("//"));
        assert!(source.code.contains("r#type"));
    }

    #[test]
    fn characters_and_lifetimes_are_told_apart() {
        let source = parse("fn a<'a>(x: &'a str) { let q = ['\"', '\\'', '{', '\\u{7f}']; }");
        assert!(source.literals.is_empty());
        assert!(source.code.contains("<'a>(x: &'a str)"));
        assert!(source.code.contains("let q = [") && source.code.ends_with("]; }"));
    }

    #[test]
    fn test_items_are_known_by_line() {
        let source = parse("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n");
        let tested: Vec<usize> = (1..=6).filter(|line| source.is_test_line(*line)).collect();
        assert_eq!(tested, [2, 3, 4, 5]);
        assert!(source.has_inline_tests());
        assert!(!parse("#[cfg(test)]\nmod tests;\nfn a() {}\n").has_inline_tests());
        assert!(!parse("fn a() {} // #[cfg(test)] mod tests { }\n").has_inline_tests());
    }

    #[test]
    fn test_files_are_known_by_path_or_by_their_first_line() {
        let is_test = |path, text| Source::parse(path, text).is_test_file();
        assert!(is_test("crates/store/tests/suite.rs", ""));
        assert!(is_test("crates/store/src/page/tests.rs", ""));
        assert!(is_test("crates/store/src/harness.rs", "//! Doc.\n#![cfg(test)]\n"));
        assert!(!is_test("crates/store/src/contests.rs", ""));
    }

    #[test]
    fn an_unfinished_file_ends_quietly() {
        for text in [
            "",
            "\"open",
            "/* open",
            "r#\"open",
            "'",
            "fn a() {",
            "#[cfg(test)]",
            "#[cfg(test)] mod a {",
        ] {
            let source = parse(text);
            assert_eq!(source.code.lines().count(), text.lines().count(), "{text}");
        }
    }
}
