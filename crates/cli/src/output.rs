//! The output of all commands.
//!
//! People read tables and streams; programs read JSON and YAML. A command provides both, and
//! `Screen` prints the requested format. Only a terminal gets colours. A reader that closes the
//! pipe (`farrier list | head`) ends the command without an error.

use crate::exit::{Failure, Result, eprintln_quietly};
use crate::table::{ColorMode, Table, Tone};
use clap::ValueEnum;
use erased_serde::Serialize;
use std::io::{IsTerminal, Write};

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Aligned columns
    #[default]
    Table,
    /// Aligned columns, with additional columns
    Wide,
    /// The full messages as JSON
    Json,
    /// The full messages as YAML
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
            Format::Json | Format::Yaml => false,
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
    pub fn print_record<T: serde::Serialize>(
        &mut self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let text = match self.format {
            Format::Table | Format::Wide => words(value),
            Format::Json => json(value)?,
            Format::Yaml => yaml(value)?,
        };
        self.print_raw(&text)
    }

    /// Prints a list of results. If a table is empty, prints the hint `none` on stderr.
    pub fn print_list<T: serde::Serialize>(
        &mut self,
        values: &[T],
        table: impl FnOnce(&[T], bool) -> Table,
        none: &str,
    ) -> Result<()> {
        let (wide, colors) = (self.is_wide(), self.colors);
        let text = match self.format {
            Format::Table | Format::Wide => table(values, wide).render(colors),
            Format::Json => json(&values)?,
            Format::Yaml => yaml(&values)?,
        };
        self.print_raw(&text)?;
        if values.is_empty() && self.is_human() {
            eprintln_quietly(none);
        }
        Ok(())
    }

    /// Prints one event of a stream: a text line, one JSON object per line, or one YAML document.
    pub fn print_event<T: serde::Serialize>(
        &mut self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        match self.format {
            Format::Table | Format::Wide => self.print_line(&words(value)),
            Format::Json => {
                let line = json_line(value)?;
                self.print_raw(&line)
            }
            Format::Yaml => {
                let text = yaml(value)?;
                self.print_raw(&format!("---\n{text}"))
            }
        }
    }
}

// The serializers take any message through a trait object: one copy of each in the binary, not one
// for each of the API's messages.

fn json(value: &dyn Serialize) -> Result<String> {
    let mut text = serde_json::to_string_pretty(value).map_err(unserializable)?;
    text.push('\n');
    Ok(text)
}

fn json_line(value: &dyn Serialize) -> Result<String> {
    Ok(serde_json::to_string(value).map_err(unserializable)? + "\n")
}

fn yaml(value: &dyn Serialize) -> Result<String> {
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
    use proto::v1::{Machine, MachineSpec, MachineStatus, machine_status::Phase};

    fn machine() -> Machine {
        Machine {
            machine_id: "machine-1".into(),
            labels: [("env".to_string(), "yes".to_string())].into(),
            spec: Some(MachineSpec { ssh_endpoint: "10.0.0.1:22".into(), ..Default::default() }),
            status: Some(MachineStatus {
                phase: Phase::Ready.into(),
                version: 7,
                ..Default::default()
            }),
        }
    }

    #[test]
    fn json_is_an_array_with_the_names_of_the_protos() {
        let text = json(&[machine()]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value[0]["machine_id"], "machine-1");
        assert_eq!(value[0]["spec"]["ssh_endpoint"], "10.0.0.1:22");
        assert_eq!(value[0]["status"]["phase"], "READY");
    }

    #[test]
    fn yaml_reads_back_as_what_it_was() {
        let text = yaml(&[machine()]).unwrap();
        assert!(text.contains("machine_id: machine-1\n"), "{text}");
        let back: Vec<Machine> = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, [machine()]);
    }
}
