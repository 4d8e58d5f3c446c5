//! Encodes the parameters of a request for a path, a query or a form body.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};

/// The parameters of one request, in order. Has no `Debug`: a power password may be among them.
#[derive(Default, Clone)]
pub(crate) struct Form {
    pairs: Vec<(String, String)>,
    secrets: Vec<SecretString>,
}

impl Form {
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.pairs.push((name.to_owned(), value.to_string()));
        self
    }

    #[must_use]
    pub fn with_optional(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// One parameter for each value, with the same name.
    #[must_use]
    pub fn each<T: ToString>(self, name: &str, values: impl IntoIterator<Item = T>) -> Self {
        values.into_iter().fold(self, |form, value| form.with(name, value))
    }

    #[must_use]
    pub fn secret(mut self, name: &str, value: &SecretString) -> Self {
        self.secrets.push(value.clone());
        self.with(name, value.expose_secret())
    }

    /// The values that an answer must not show.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretString> {
        self.secrets.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub fn encoded(&self) -> String {
        let pair = |(name, value): &(String, String)| format!("{}={}", encode(name), encode(value));
        self.pairs.iter().map(pair).collect::<Vec<_>>().join("&")
    }
}

/// Every character that is not unreserved in RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes every byte that is not an unreserved character of RFC 3986.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_percent_encoded() {
        let form = Form::default()
            .with("a&b", "c=d +é\n")
            .with_optional("none", None::<&str>)
            .each("mac", ["1:2", "3:4"])
            .secret("pass", &"p&q".into());
        assert_eq!(form.encoded(), "a%26b=c%3Dd%20%2B%C3%A9%0A&mac=1%3A2&mac=3%3A4&pass=p%26q");
        assert!(Form::default().is_empty() && Form::default().encoded().is_empty());
    }
}
