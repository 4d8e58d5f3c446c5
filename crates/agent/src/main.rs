//! The program of the deploy environment: reads how the machine was booted, does the work, and reboots or powers off.

use agent::cmdline::Boot;
use agent::console::say;
use agent::hands::Real;
use agent::pace::Pace;
use agent::{Config, End};
use rustix::system::{RebootCommand, reboot};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: farrier-agent [--cmdline TEXT] [--root DIR] [--stay]
  --cmdline TEXT  read TEXT in place of /proc/cmdline
  --root DIR      look for sys and dev in DIR
  --stay          say `reboot` or `power off` at the end, and do neither";

struct Arguments {
    cmdline: Option<String>,
    root: PathBuf,
    stay: bool,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut found = Arguments { cmdline: None, root: "/".into(), stay: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--cmdline" => found.cmdline = Some(words.next()?),
            "--root" => found.root = words.next()?.into(),
            "--stay" => found.stay = true,
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match begin(&arguments) {
        Ok(end) => leave(end, arguments.stay),
        Err(said) => {
            say(&said);
            ExitCode::from(2)
        }
    }
}

fn begin(arguments: &Arguments) -> Result<End, String> {
    let cmdline = match &arguments.cmdline {
        Some(text) => text.clone(),
        None => fs::read_to_string("/proc/cmdline")
            .map_err(|error| format!("/proc/cmdline: {error}"))?,
    };
    let config = Config {
        boot: Boot::parse(&cmdline)?,
        root: arguments.root.clone(),
        pace: Pace::default(),
    };
    agent::run(&config, &Real)
}

/// Ends the machine's time in the deploy environment. On a real machine this does not return.
fn leave(end: End, stay: bool) -> ExitCode {
    let (word, command) = match end {
        End::Reboot => ("reboot", RebootCommand::Restart),
        End::PowerOff => ("power off", RebootCommand::PowerOff),
    };
    say(word);
    if stay {
        return ExitCode::SUCCESS;
    }
    rustix::fs::sync();
    match reboot(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("cannot {word}: {error}"));
            ExitCode::FAILURE
        }
    }
}
