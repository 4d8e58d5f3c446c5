//! Form parameters: names and values; a name may occur several times.

#[derive(Debug, Clone, Default)]
pub struct Form(Vec<(String, String)>);

impl Form {
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let read = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        };
        Self(pairs.map(read).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn without(self, name: &str) -> Self {
        Self(self.0.into_iter().filter(|(given, _)| given != name).collect())
    }

    pub fn is_true(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "True" | "1" | "on" | "yes"))
    }

    /// The first name that is not among these.
    pub fn unknown(&self, known: &[&str]) -> Option<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).find(|name| !known.contains(name))
    }
}

/// Decodes `%41`.
pub fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| *first == b'%').and_then(|d| u8::from_str_radix(d, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
