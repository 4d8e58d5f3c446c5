//! Masks secrets in installer logs before they are shown or stored: curtin logs its configuration,
//! which holds the keys of the new system for MAAS.

/// How the names of secrets begin.
const NAMES: [&str; 4] = ["oauth_", "consumer_key", "token_key", "token_secret"];
const COVER: &str = "***";

/// Masks the values of keys: `oauth_token_key=***`, `'token_secret': '***'`.
pub(super) fn masked(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = NAMES.iter().filter_map(|name| rest.find(name)).min() {
        let part_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let behind = rest[at..].trim_start_matches(part_of_name);
        let value = behind.trim_start_matches(['\'', '"', ' ', ':', '=', '\\']);
        let between = &behind[..behind.len() - value.len()];
        shown.push_str(&rest[..rest.len() - value.len()]);
        rest = value;
        if between.contains(['=', ':']) {
            shown.push_str(COVER);
            let ends = |c: char| c.is_whitespace() || "&'\",;})\\".contains(c);
            rest = value.find(ends).map_or("", |end| &value[end..]);
        }
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_covered_and_nothing_else() {
        for (line, shown) in [
            (
                "string oauth_consumer_key=aaa&oauth_token_key=bbb&oauth_token_secret=ccc\\ncloud-init",
                "string oauth_consumer_key=***&oauth_token_key=***&oauth_token_secret=***\\ncloud-init",
            ),
            (
                "{'consumer_key': 'aaa', 'token_key': 'bbb', 'token_secret': 'ccc', 'a': 1}",
                "{'consumer_key': '***', 'token_key': '***', 'token_secret': '***', 'a': 1}",
            ),
            (
                r#"{"token_secret": "ccc"} oauth_signature="%26ccc""#,
                r#"{"token_secret": "***"} oauth_signature="***""#,
            ),
            ("oauth_token_secret=", "oauth_token_secret=***"),
            ("no token_key was given, ä", "no token_key was given, ä"),
            ("Command 'grub-install' failed", "Command 'grub-install' failed"),
            ("", ""),
        ] {
            assert_eq!(masked(line), shown);
        }
    }
}
