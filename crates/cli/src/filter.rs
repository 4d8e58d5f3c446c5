//! Builds filters from the options of list commands. All terms must hold.

use crate::time::to_message;
use model::time::Timestamp;

/// The text of a filter.
#[derive(Default)]
pub struct FilterText(Vec<String>);

impl FilterText {
    /// Adds the filter that the user typed.
    pub fn typed(text: &str) -> Self {
        Self::default().push(text.trim().to_string())
    }

    /// The field has one of the values. Without values it may have any.
    pub fn any_of(self, field: &str, values: &[String]) -> Self {
        let quoted: Vec<String> = values.iter().map(|value| quote(value)).collect();
        match quoted.is_empty() {
            true => self,
            false => self.push(format!("{field} in ({})", quoted.join(", "))),
        }
    }

    /// The field has none of the values.
    pub fn none_of(self, field: &str, values: &[&str]) -> Self {
        self.push(format!("{field} not in ({})", values.join(", ")))
    }

    /// The field has the value. An empty value adds nothing.
    pub fn equal(self, field: &str, value: &str) -> Self {
        match value {
            "" => self,
            value => self.push(format!("{field}={}", quote(value))),
        }
    }

    /// The field has an empty value.
    pub fn empty(self, field: &str) -> Self {
        self.push(format!("{field}=\"\""))
    }

    /// The time in the field is not before this one.
    pub fn not_before(self, field: &str, time: Option<Timestamp>) -> Self {
        let Some(time) = time else { return self };
        self.push(format!("{field}>={}", to_message(time)))
    }

    /// The label has the value; any value if it is empty.
    pub fn label(self, key: &str, value: &str) -> Self {
        match value {
            "" => self.push(format!("labels.{key}")),
            value => self.push(format!("labels.{key}={}", quote(value))),
        }
    }

    /// True if everything matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(mut self, term: String) -> Self {
        if !term.is_empty() {
            self.0.push(term);
        }
        self
    }

    pub fn build(self) -> String {
        self.0.join(" AND ")
    }
}

/// The note under an empty list: `none` if no filter was given.
pub fn empty_list_note<'a>(filter: &str, none: &'a str) -> &'a str {
    if filter.trim().is_empty() { none } else { "nothing matches the filter" }
}

fn quote(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_terms() {
        let built = FilterText::typed(" state!=Ready ")
            .any_of("state", &["Error".into(), "a\"b".into()])
            .any_of("hardware_type", &[])
            .equal("rack_id", "rack-7")
            .empty("part_of")
            .not_before("created_at", Some(Timestamp::from_micros(1)))
            .equal("site_id", "")
            .label("env", "prod")
            .label("spare", "")
            .build();
        let expected = r#"state!=Ready AND state in ("Error", "a\"b") AND rack_id="rack-7" AND part_of="" AND created_at>=1970-01-01T00:00:00.000001Z AND labels.env="prod" AND labels.spare"#;
        assert_eq!(built, expected);
        assert_eq!(FilterText::typed("").build(), "");
        assert_eq!(empty_list_note(" ", "no images"), "no images");
        assert_eq!(empty_list_note(&built, "no images"), "nothing matches the filter");
    }
}
