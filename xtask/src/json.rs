//! Reads JSON, such as the output of `cargo metadata`, and writes its texts. Small on purpose: this
//! program has no dependencies.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// Deeper values are refused: the reader is recursive.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// As it is written.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    pub fn parse(text: &str) -> Option<Self> {
        let mut reader = text.chars().peekable();
        let value = read(&mut reader, 0)?;
        skip_blanks(&mut reader);
        reader.next().is_none().then_some(value)
    }

    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.get(key),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Text(_) | Self::List(_) => None,
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Self::Text(text) => Some(text),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::List(_) | Self::Object(_) => None,
        }
    }

    /// The entries of a list; none if it is missing.
    pub fn list(&self, key: &str) -> &[Self] {
        match self.get(key) {
            Some(Self::List(entries)) => entries,
            Some(_) | None => &[],
        }
    }
}

/// A text as JSON writes it.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}

fn skip_blanks(reader: &mut Peekable<Chars>) {
    while reader.next_if(|c| c.is_ascii_whitespace()).is_some() {}
}

fn read(reader: &mut Peekable<Chars>, depth: usize) -> Option<Json> {
    skip_blanks(reader);
    match reader.peek()? {
        '{' | '[' if depth >= MAX_DEPTH => None,
        '{' => read_object(reader, depth).map(Json::Object),
        '[' => read_list(reader, depth).map(Json::List),
        '"' => read_text(reader).map(Json::Text),
        _ => {
            let mut word = String::new();
            while let Some(c) = reader.next_if(|c| c.is_ascii_alphanumeric() || "+-.".contains(*c))
            {
                word.push(c);
            }
            match word.as_str() {
                "null" => Some(Json::Null),
                "true" => Some(Json::Bool(true)),
                "false" => Some(Json::Bool(false)),
                number => number.parse::<f64>().is_ok().then_some(Json::Number(word)),
            }
        }
    }
}

fn read_object(reader: &mut Peekable<Chars>, depth: usize) -> Option<BTreeMap<String, Json>> {
    let mut fields = BTreeMap::new();
    reader.next();
    skip_blanks(reader);
    if reader.next_if_eq(&'}').is_some() {
        return Some(fields);
    }
    loop {
        skip_blanks(reader);
        let key = read_text(reader)?;
        skip_blanks(reader);
        reader.next_if_eq(&':')?;
        fields.insert(key, read(reader, depth + 1)?);
        skip_blanks(reader);
        match reader.next()? {
            ',' => {}
            '}' => return Some(fields),
            _ => return None,
        }
    }
}

fn read_list(reader: &mut Peekable<Chars>, depth: usize) -> Option<Vec<Json>> {
    let mut entries = Vec::new();
    reader.next();
    skip_blanks(reader);
    if reader.next_if_eq(&']').is_some() {
        return Some(entries);
    }
    loop {
        entries.push(read(reader, depth + 1)?);
        skip_blanks(reader);
        match reader.next()? {
            ',' => {}
            ']' => return Some(entries),
            _ => return None,
        }
    }
}

fn read_text(reader: &mut Peekable<Chars>) -> Option<String> {
    reader.next_if_eq(&'"')?;
    let mut units: Vec<u16> = Vec::new();
    loop {
        match reader.next()? {
            '"' => return String::from_utf16(&units).ok(),
            '\\' => units.push(match reader.next()? {
                'u' => {
                    let digits: String = reader.by_ref().take(4).collect();
                    u16::from_str_radix(&digits, 16).ok()?
                }
                'n' => 10,
                't' => 9,
                'r' => 13,
                'b' => 8,
                'f' => 12,
                c @ ('"' | '\\' | '/') => c as u16,
                _ => return None,
            }),
            c => units.extend(c.encode_utf16(&mut [0; 2]).iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let text = r#" {"a": [1, -2.5e3, true, null], "b": {"c": "x\"\\\n\u00e4\ud83d\ude00ö"}, "d": []} "#;
        let value = Json::parse(text).unwrap();
        assert_eq!(value.list("a").len(), 4);
        assert_eq!(value.list("a")[1], Json::Number("-2.5e3".into()));
        assert_eq!(value.get("b").unwrap().text("c"), Some("x\"\\\nä😀ö"));
        assert_eq!((value.list("d"), value.list("none")), (&[][..], &[][..]));
        let text = "a\"\\\n\u{1}ö";
        assert_eq!(Json::parse(&quoted(text)), Some(Json::Text(text.into())));
    }

    #[test]
    fn broken_values_are_refused() {
        for bad in ["", "{", "[1,]", "{\"a\" 1}", "\"\\x\"", "\"\\ud800\"", "1 2", "nul", "\"a"] {
            assert_eq!(Json::parse(bad), None, "{bad}");
        }
        assert_eq!(Json::parse(&"[".repeat(100_000)), None);
    }
}
