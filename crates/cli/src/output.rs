//! The output of all commands.
//!
//! People read tables and streams; programs read JSON and YAML. A command provides both, and
//! `Screen` prints the requested format. Only a terminal gets colours. A reader that closes the
//! pipe (`farrier list | head`) ends the command without an error.

use crate::exit::{Failure, Result, eprintln_quietly};
use crate::table::{ColorMode, Table, Tone};
use clap::ValueEnum;
use proto::{Name, json_form};
use serde_json::Value;
use std::io::{IsTerminal, Write};

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Aligned columns
    #[default]
    Table,
    /// Aligned columns, with additional columns
    Wide,
    /// Every field as JSON; keys in alphabetical order, states by the words that filters take
    Json,
    /// JSON, one object per line
    Jsonl,
    /// The same as YAML
    Yaml,
}

pub struct Screen {
    format: Format,
    terminal: bool,
    colors: ColorMode,
    out: Box<dyn Write + Send>,
}

impl Screen {
    pub fn stdout(format: Format) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colors = ColorMode { enabled: terminal && !plain };
        Self { format, terminal, colors, out: Box::new(std::io::stdout()) }
    }

    pub fn color_mode(&self) -> ColorMode {
        self.colors
    }

    /// True if stdout is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// True for tables, false for JSON and YAML.
    pub fn is_human(&self) -> bool {
        match self.format {
            Format::Table | Format::Wide => true,
            Format::Json | Format::Jsonl | Format::Yaml => false,
        }
    }

    pub fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Prints a line for people; JSON and YAML output leave it out.
    pub fn print_line(&mut self, line: &str) -> Result<()> {
        if self.is_human() {
            self.print_raw(&format!("{line}\n"))?;
        }
        Ok(())
    }

    /// Like `print_line`, in the colour of `tone`.
    pub fn print_toned_line(&mut self, tone: Tone, line: &str) -> Result<()> {
        let line = self.colors.apply(tone, line);
        self.print_line(&line)
    }

    /// Prints a line that people must see: on stderr if stdout carries JSON or YAML.
    pub fn print_notice(&mut self, line: &str) -> Result<()> {
        if self.is_human() {
            return self.print_line(line);
        }
        eprintln_quietly(line);
        Ok(())
    }

    /// Prints text unchanged, without adding a line end.
    pub fn print_raw(&mut self, text: &str) -> Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()?;
        Ok(())
    }

    /// Prints one result: as text for people, or as the full message for programs.
    pub fn print_record<T: Name>(
        &mut self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        self.print_either(|| Ok(json_form::to_json(value)), || words(value))
    }

    /// Like `print_record`, for several results that are shown as one text.
    pub fn print_records<T: Name>(
        &mut self,
        values: &[T],
        words: impl FnOnce(&[T]) -> String,
    ) -> Result<()> {
        self.print_either(|| Ok(own_forms(values)), || words(values))
    }

    /// Like `print_record`, for a value that is no message of the API.
    pub fn print_value<T: serde::Serialize>(
        &mut self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        self.print_either(|| serde_json::to_value(value).map_err(unserializable), || words(value))
    }

    fn print_either(
        &mut self,
        form: impl FnOnce() -> Result<Value>,
        words: impl FnOnce() -> String,
    ) -> Result<()> {
        let text = match self.format {
            Format::Table | Format::Wide => words(),
            Format::Json => json(&form()?)?,
            Format::Jsonl => json_lines(&form()?),
            Format::Yaml => yaml(&form()?)?,
        };
        self.print_raw(&text)
    }

    /// Prints a list of results. If a table is empty, prints the hint `none` on stderr.
    pub fn print_list<T: Name>(
        &mut self,
        values: &[T],
        table: impl FnOnce(&[T], bool) -> Table,
        none: &str,
    ) -> Result<()> {
        let (wide, colors) = (self.is_wide(), self.colors);
        self.print_either(|| Ok(own_forms(values)), || table(values, wide).render(colors))?;
        if values.is_empty() && self.is_human() {
            eprintln_quietly(none);
        }
        Ok(())
    }

    /// Prints one event of a stream: a text line, one JSON object per line, or one YAML document.
    pub fn print_event<T: Name>(
        &mut self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        match self.format {
            Format::Table | Format::Wide => self.print_line(&words(value)),
            Format::Json | Format::Jsonl => {
                let line = json_form::to_json(value);
                self.print_raw(&format!("{line}\n"))
            }
            Format::Yaml => {
                let text = yaml(&json_form::to_json(value))?;
                self.print_raw(&format!("---\n{text}"))
            }
        }
    }
}

/// The form of a list of messages in JSON and YAML.
fn own_forms<T: Name>(values: &[T]) -> Value {
    values.iter().map(json_form::to_json).collect()
}

fn json(value: &Value) -> Result<String> {
    let mut text = serde_json::to_string_pretty(value).map_err(unserializable)?;
    text.push('\n');
    Ok(text)
}

/// One line for each result of a list.
fn json_lines(value: &Value) -> String {
    match value.as_array() {
        Some(values) => values.iter().map(|value| format!("{value}\n")).collect(),
        None => format!("{value}\n"),
    }
}

fn yaml(value: &Value) -> Result<String> {
    let mut text = serde_saphyr::to_string(&value).map_err(unserializable)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn unserializable(error: impl std::fmt::Display) -> Failure {
    Failure::bug(format!(
        "the server sent what this farrier does not know: {error}; are the versions the same?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::{EffectiveState, Machine, MachineSpec, MachineStatus, machine_status::Phase};

    fn machine() -> Machine {
        Machine {
            machine_id: "machine-1".into(),
            labels: [("env".to_string(), "yes".to_string())].into(),
            spec: Some(MachineSpec { ssh_endpoint: "10.0.0.1:22".into(), ..Default::default() }),
            status: Some(MachineStatus {
                phase: Phase::Ready.into(),
                effective_state: EffectiveState::Idle.into(),
                version: 7,
                ..Default::default()
            }),
        }
    }

    #[test]
    fn json_has_the_field_names_of_the_protos_and_the_words_of_filters() {
        let text = json(&own_forms(&[machine()])).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value[0]["machine_id"], "machine-1");
        assert_eq!(value[0]["spec"]["ssh_endpoint"], "10.0.0.1:22");
        assert_eq!(value[0]["status"]["phase"], "READY");
        assert_eq!(value[0]["status"]["effective_state"], "IDLE");
        assert_eq!(value[0]["status"]["version"], 7);
    }

    #[test]
    fn keys_are_in_alphabetical_order() {
        let text = json(&json_form::to_json(&machine())).unwrap();
        let keys = ["\"labels\"", "\"machine_id\"", "\"spec\"", "\"status\"", "\"version\""];
        let at = keys.map(|key| text.find(key).unwrap());
        assert!(at.is_sorted(), "{text}");
    }

    #[test]
    fn json_lines_have_one_object_each() {
        let text = json_lines(&own_forms(&[machine(), machine()]));
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [json_form::to_json(&machine()), json_form::to_json(&machine())]);
        assert_eq!(json_lines(&json_form::to_json(&machine())), text[..text.len() / 2]);
    }

    #[test]
    fn yaml_has_the_same_form() {
        let text = yaml(&own_forms(&[machine()])).unwrap();
        assert!(text.contains("machine_id: machine-1\n"), "{text}");
        assert!(text.contains("effective_state: IDLE\n"), "{text}");
    }
}
