//! Masks the credentials in use in the texts of peers: answers, logs and events.

use crate::http_client::form::encode;
use secrecy::{ExposeSecret, SecretString};
use std::borrow::Cow;
use std::fmt;

/// A shorter value occurs in ordinary words too. The whole word is then masked, so that neither the
/// value nor its place in the word is shown.
const MIN_BYTES: usize = 6;
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
        for secret in secrets.into_iter().filter(|one| !one.expose_secret().is_empty()) {
            let encoded = encode(secret.expose_secret());
            if encoded != secret.expose_secret() {
                forms.push(encoded.into());
            }
            forms.push(secret.clone());
        }
        Self(forms)
    }

    /// These secrets and those of another mask.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
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
        let (before, behind) = covered(rest, at, secret);
        masked.extend_from_slice(before);
        masked.extend_from_slice(COVER);
        rest = behind;
        match find(rest, secret) {
            Some(next) => at = next,
            None => {
                masked.extend_from_slice(rest);
                return Some(masked);
            }
        }
    }
}

/// The bytes before and after the masked range for a secret at this place. A short secret is masked
/// with the whole word around it.
fn covered<'a>(bytes: &'a [u8], at: usize, secret: &[u8]) -> (&'a [u8], &'a [u8]) {
    let (before, behind) = (&bytes[..at], &bytes[at + secret.len()..]);
    if secret.len() >= MIN_BYTES {
        return (before, behind);
    }
    let start = before.iter().rposition(|byte| !is_letter(*byte)).map_or(0, |last| last + 1);
    let end = behind.iter().position(|byte| !is_letter(*byte)).unwrap_or(behind.len());
    (&before[..start], &behind[end..])
}

/// Every byte of a character that is not ASCII counts as a letter.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
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
        let mask = SecretMask::of(&["s3cret-1".into(), "p&ss word".into(), "".into()]);
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

    #[test]
    fn a_short_secret_takes_its_word_with_it() {
        let mask = SecretMask::of(&["admin".into(), "a&b".into()]);
        for (text, shown) in [
            ("admin", "***"),
            ("no login for admin:admin@10.0.0.5", "no login for ***:***@10.0.0.5"),
            ("ipmitool -Padmin, administrator", "ipmitool -***, ***"),
            ("admin_of_it: it is well", "***_of_it: it is well"),
            ("éadminé adminadmin.", "*** ***."),
            ("x=a&b&y=xa%26b", "x=***&y=***"),
            ("Admin, badmi, and more", "Admin, badmi, and more"),
        ] {
            assert_eq!(mask.text(text), shown);
        }
        assert_eq!(SecretMask::of(&["1".into()]).text("power 1, 10.2"), "power ***, ***.2");
    }
}
