//! Masks the credentials in use in texts that come from outside: answers, logs and events.

use crate::http_client::form::encode;
use secrecy::{ExposeSecret, SecretString};
use std::borrow::Cow;
use std::fmt;

/// Shorter values are not masked: they occur in ordinary words.
const MIN_CHARS: usize = 6;
const COVER: &[u8] = b"***";

/// The secrets to mask, as they are and percent-encoded.
#[derive(Clone, Default)]
pub(crate) struct SecretMask(Vec<SecretString>);

impl fmt::Debug for SecretMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretMask").finish_non_exhaustive()
    }
}

impl SecretMask {
    pub fn of<'a>(secrets: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut forms: Vec<SecretString> = Vec::new();
        for secret in secrets.into_iter().filter(|one| one.expose_secret().len() >= MIN_CHARS) {
            let encoded = encode(secret.expose_secret());
            if encoded != secret.expose_secret() {
                forms.push(encoded.into());
            }
            forms.push(secret.clone());
        }
        Self(forms)
    }

    pub fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }

    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.0.iter().fold(Cow::Borrowed(bytes), |masked, secret| {
            match replaced(&masked, secret.expose_secret().as_bytes()) {
                Some(changed) => Cow::Owned(changed),
                None => masked,
            }
        })
    }
}

/// `None`: the secret does not occur.
fn replaced(bytes: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let mut at = find(bytes, secret)?;
    let (mut masked, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    loop {
        masked.extend_from_slice(&rest[..at]);
        masked.extend_from_slice(COVER);
        rest = &rest[at + secret.len()..];
        match find(rest, secret) {
            Some(next) => at = next,
            None => {
                masked.extend_from_slice(rest);
                return Some(masked);
            }
        }
    }
}

/// Looks for the first byte only, then compares: the list of a region has hundreds of megabytes.
fn find(bytes: &[u8], secret: &[u8]) -> Option<usize> {
    let first = secret.first()?;
    let mut from = 0;
    loop {
        from += bytes.get(from..)?.iter().position(|byte| byte == first)?;
        if bytes[from..].starts_with(secret) {
            return Some(from);
        }
        from += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_and_nothing_else() {
        let mask = SecretMask::of(&["s3cret-1".into(), "p&ss word".into(), "abc".into()]);
        for (text, shown) in [
            ("", ""),
            ("nothing to hide, abc", "nothing to hide, abc"),
            ("&s3cret-1 and s3cret-1s3cret-1", "&*** and ******"),
            ("pass=p&ss word; p%26ss%20word", "pass=***; ***"),
        ] {
            assert_eq!(mask.text(text), shown);
        }
        assert_eq!(SecretMask::default().text("s3cret-1"), "s3cret-1");
    }
}
