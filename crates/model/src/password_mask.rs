//! Masks passwords in texts about databases: URLs, lists of keywords, and errors that quote them.

const MASK: &str = "***";
const KEYWORD: &str = "password";

/// The text without passwords: neither in `scheme://user:PASSWORD@host`, nor after `password=`,
/// with or without quotes and blanks. In doubt, too much is masked.
pub fn mask_passwords(text: &str) -> String {
    let masked: Vec<String> = text.split('\n').map(|line| mask_values(&mask_login(line))).collect();
    masked.join("\n")
}

/// Masks the password of a URL. It may contain every character, so it ends at the last `@`.
fn mask_login(line: &str) -> String {
    if let Some((before, rest)) = line.split_once("://")
        && let Some((login, behind)) = rest.rsplit_once('@')
        && let Some((user, _)) = login.split_once(':')
    {
        return format!("{before}://{user}:{MASK}@{behind}");
    }
    line.to_string()
}

/// Masks every value after the keyword.
fn mask_values(line: &str) -> String {
    let mut masked = String::new();
    let mut rest = line;
    while let Some(at) = rest.to_ascii_lowercase().find(KEYWORD) {
        let (before, behind) = rest.split_at(at + KEYWORD.len());
        masked += before;
        rest = behind;
        let Some(value) = behind.trim_start().strip_prefix('=') else { continue };
        masked.push('=');
        masked += MASK;
        rest = after_value(value.trim_start());
    }
    masked + rest
}

/// The text after a value. A quoted value ends at the next quote without a backslash before it.
fn after_value(value: &str) -> &str {
    let Some(quote @ ('\'' | '"')) = value.chars().next() else {
        let ends = |c: char| c.is_whitespace() || matches!(c, '&' | '\'' | '"' | ')');
        return value.find(ends).map_or("", |end| &value[end..]);
    };
    let mut escaped = false;
    for (index, c) in value.char_indices().skip(1) {
        match c {
            '\\' if !escaped => escaped = true,
            c if c == quote && !escaped => return &value[index + 1..],
            _ => escaped = false,
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_masked_in_every_form() {
        for (text, expected) in [
            ("", ""),
            ("postgres://db/x", "postgres://db/x"),
            ("postgres://ada@db/x", "postgres://ada@db/x"),
            ("postgres://ada:s3cret@db/x", "postgres://ada:***@db/x"),
            ("postgres://ada:s3:c@re/t@db/x", "postgres://ada:***@db/x"),
            (
                "postgres://db/x?user=ada&password=s3cret&a=b",
                "postgres://db/x?user=ada&password=***&a=b",
            ),
            ("postgres://ada:s3cret@db/x?password=s3cret", "postgres://ada:***@db/x?password=***"),
            ("host=db password=s3cret user=ada", "host=db password=*** user=ada"),
            ("host=db password = s3cret", "host=db password=***"),
            ("host=db password='s3 c\\'ret' user=ada", "host=db password=*** user=ada"),
            ("host=db PassWord='s3cret", "host=db PassWord=***"),
            ("sslpassword=s3cret", "sslpassword=***"),
            ("password=s3cret password=s3cret", "password=*** password=***"),
            (
                "3 | database_url = \"host=db password=s3cret\"",
                "3 | database_url = \"host=db password=***\"",
            ),
            ("a\npassword=s3cret\nb", "a\npassword=***\nb"),
            ("no password was given", "no password was given"),
        ] {
            let masked = mask_passwords(text);
            assert_eq!(masked, expected);
            assert!(!masked.contains("s3"), "{masked}");
        }
    }
}
