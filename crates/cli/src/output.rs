//! Where everything that is printed goes through.
//!
//! People read tables and streams, programs read JSON and YAML; a command makes both and the screen
//! shows the one that was asked for. Colour is for terminals only. A reader that goes away
//! (`farrier list | head`) ends the command quietly.

use crate::exit::{Failure, eprintln_quietly};
use crate::table::{Paint, Table, Tone};
use clap::ValueEnum;
use erased_serde::Serialize;
use std::io::{IsTerminal, Write};

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Aligned columns
    #[default]
    Table,
    /// Aligned columns, all of them
    Wide,
    /// The full messages as JSON
    Json,
    /// The full messages as YAML
    Yaml,
}

pub struct Screen {
    format: Format,
    terminal: bool,
    paint: Paint,
    out: Box<dyn Write + Send>,
}

impl Screen {
    pub fn stdout(format: Format) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let paint = Paint { colour: terminal && !plain };
        Self { format, terminal, paint, out: Box::new(std::io::stdout()) }
    }

    pub fn paint(&self) -> Paint {
        self.paint
    }

    /// True when a person reads along.
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

    /// A line for people; programs do not get it.
    pub fn say(&mut self, line: &str) -> Result<(), Failure> {
        if self.is_human() {
            self.raw(&format!("{line}\n"))?;
        }
        Ok(())
    }

    /// The same with a meaning.
    pub fn say_toned(&mut self, tone: Tone, line: &str) -> Result<(), Failure> {
        let line = self.paint.apply(tone, line);
        self.say(&line)
    }

    /// A line for people that must not get lost: on stderr when stdout belongs to a program.
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        if self.is_human() {
            return self.say(line);
        }
        eprintln_quietly(line);
        Ok(())
    }

    /// Text as it is, with its own line ends.
    pub fn raw(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()?;
        Ok(())
    }

    /// One result: in words for people, or in full for programs.
    pub fn one<T: serde::Serialize>(
        &mut self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = match self.format {
            Format::Table | Format::Wide => words(value),
            Format::Json => json(value)?,
            Format::Yaml => yaml(value)?,
        };
        self.raw(&text)
    }

    /// Many results. `none` says on stderr what to do about an empty table.
    pub fn many<T: serde::Serialize>(
        &mut self,
        values: &[T],
        table: impl FnOnce(&[T], bool) -> Table,
        none: &str,
    ) -> Result<(), Failure> {
        let (wide, paint) = (self.is_wide(), self.paint);
        let text = match self.format {
            Format::Table | Format::Wide => table(values, wide).render(paint),
            Format::Json => json(&values)?,
            Format::Yaml => yaml(&values)?,
        };
        self.raw(&text)?;
        if values.is_empty() && self.is_human() {
            eprintln_quietly(none);
        }
        Ok(())
    }

    /// One event of a stream: a line in words, one JSON object a line, or one YAML document.
    pub fn event<T: serde::Serialize>(
        &mut self,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Table | Format::Wide => self.say(&words(value)),
            Format::Json => {
                let line = json_line(value)?;
                self.raw(&line)
            }
            Format::Yaml => {
                let text = yaml(value)?;
                self.raw(&format!("---\n{text}"))
            }
        }
    }
}

// The serializers take any message through a trait object: one copy of each in the binary, not one for
// each of the API's messages.

fn json(value: &dyn Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(unserializable)?;
    text.push('\n');
    Ok(text)
}

fn json_line(value: &dyn Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string(value).map_err(unserializable)? + "\n")
}

fn yaml(value: &dyn Serialize) -> Result<String, Failure> {
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
