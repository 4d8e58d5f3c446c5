//! The URL of the database, and its password from a file or from the environment.

use model::password_mask::mask_passwords;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;
use std::path::Path;

pub const PASSWORD_VARIABLE: &str = "FARRIER_DATABASE_PASSWORD";

/// A PostgreSQL URL or list of keywords. A password in it is not shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.masked().fmt(f)
    }
}

impl Deref for DatabaseUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for DatabaseUrl {
    fn from(url: T) -> Self {
        Self(url.into())
    }
}

impl DatabaseUrl {
    pub fn masked(&self) -> String {
        mask_passwords(&self.0)
    }

    /// The URL with the password of the variable, or else of the file.
    pub(super) fn with_password(
        &self,
        variable: Option<String>,
        file: &Path,
    ) -> Result<SecretString, String> {
        let password = match (variable, file.as_os_str().is_empty()) {
            (Some(password), _) => SecretString::from(password),
            (None, true) => return Ok(self.0.clone().into()),
            (None, false) => read_password(file)?,
        };
        if self.masked() != self.0 {
            return Err(format!(
                "the password of the database is given twice; remove it from database_url, which \
                 is {}",
                self.masked()
            ));
        }
        Ok(self.insert(password.expose_secret()).into())
    }

    fn insert(&self, password: &str) -> String {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            let quoted = password.replace('\\', "\\\\").replace('\'', "\\'");
            return format!("{} password='{quoted}'", self.0);
        };
        let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
        match rest.split_once('@') {
            Some((user, rest)) => format!("{scheme}://{user}:{password}@{rest}"),
            None => {
                let joint = if rest.contains('?') { '&' } else { '?' };
                format!("{scheme}://{rest}{joint}password={password}")
            }
        }
    }
}

fn read_password(file: &Path) -> Result<SecretString, String> {
    let text = std::fs::read_to_string(file).map(SecretString::from).map_err(|error| {
        format!("database_password_file {} cannot be read: {error}", file.display())
    })?;
    match text.expose_secret().lines().next() {
        Some(line) if !line.is_empty() => Ok(line.into()),
        Some(_) | None => Err(format!(
            "database_password_file {} has no password on its first line",
            file.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_put_into_every_form_of_the_url() {
        let word = "p w/'\\";
        for (url, expected) in [
            ("postgres://ada@db/x", "postgres://ada:p%20w%2F%27%5C@db/x"),
            ("postgres://db/x", "postgres://db/x?password=p%20w%2F%27%5C"),
            ("postgres://db/x?a=b", "postgres://db/x?a=b&password=p%20w%2F%27%5C"),
            ("host=db user=ada", "host=db user=ada password='p w/\\'\\\\'"),
        ] {
            let url = DatabaseUrl::from(url);
            let given = url.with_password(Some(word.into()), Path::new("")).unwrap();
            assert_eq!(given.expose_secret(), expected);
            // The masked result shows no more than the URL without its password.
            assert!(!mask_passwords(expected).contains("p%20w"), "{expected}");
            assert!(!mask_passwords(expected).contains("p w"), "{expected}");
        }
    }

    #[test]
    fn a_password_comes_from_one_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "s3cret\n").unwrap();
        let url = DatabaseUrl::from("postgres://ada@db/x");
        let of_file = url.with_password(None, &file).unwrap();
        assert_eq!(of_file.expose_secret(), "postgres://ada:s3cret@db/x");
        let none = url.with_password(None, Path::new("")).unwrap();
        assert_eq!(none.expose_secret(), "postgres://ada@db/x");
        let twice = DatabaseUrl::from("postgres://ada:other@db/x");
        let message = twice.with_password(None, &file).map(drop).unwrap_err();
        assert!(message.contains("given twice") && !message.contains("other"), "{message}");
        std::fs::write(&file, "\n").unwrap();
        assert!(url.with_password(None, &file).is_err());
        assert!(url.with_password(None, Path::new("/no/file")).is_err());
    }
}
