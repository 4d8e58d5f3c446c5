//! The binary on the machine itself. Without a subcommand it is the agent of the deploy
//! environment: it reads the kernel command line, carries out the deployment, and reboots or powers
//! off. With the subcommand `node` it is the agent of a node in service.

use agent::cmdline::BootParameters;
use agent::console::print_line;
use agent::platform::RealPlatform;
use agent::timing::Timing;
use agent::{DeployConfig, FinalAction, node};
use rustix::system::{RebootCommand, reboot};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: farrier-agent [--cmdline TEXT] [--root DIR] [--stay]
  --cmdline TEXT  read TEXT in place of /proc/cmdline
  --root DIR      look for sys and dev in DIR
  --stay          say `reboot` or `power off` at the end, and do neither
usage: farrier-agent node run|status|enroll|unit [--config FILE]
  run             be the agent of this node until it is uninstalled
  status          show who this node is, and what it does
  enroll          enroll it, and end
  unit            print the systemd unit that runs this program
  --config FILE   in place of /etc/farrier/agent.toml";

/// The subcommand that selects the agent of a node.
const NODE: &str = "node";

struct Arguments {
    cmdline: Option<String>,
    root: PathBuf,
    stay: bool,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut found = Arguments { cmdline: None, root: "/".into(), stay: false };
    while let Some(name) = words.next() {
        match name.as_str() {
            "--cmdline" => found.cmdline = Some(words.next()?),
            "--root" => found.root = words.next()?.into(),
            "--stay" => found.stay = true,
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|name| name == NODE).is_some() {
        return run_node_command(words);
    }
    let Some(arguments) = arguments(words) else { return usage_error() };
    match run_deployment(&arguments) {
        Ok(end) => reboot_or_power_off(end, arguments.stay),
        Err(message) => {
            print_line(&message);
            ExitCode::from(2)
        }
    }
}

fn usage_error() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// The path of this program, for the systemd unit.
fn own_path() -> String {
    let own = std::env::current_exe().ok();
    own.map_or_else(|| "/usr/local/bin/farrier-agent".into(), |path| path.display().to_string())
}

/// Runs a subcommand of `node`.
fn run_node_command(mut words: impl Iterator<Item = String>) -> ExitCode {
    let all: [Option<String>; 4] = std::array::from_fn(|_| words.next());
    let [Some(verb), option, path, None] = all else { return usage_error() };
    let path = match (option.as_deref(), path) {
        (None, None) => node::config::DEFAULT_PATH.into(),
        (Some("--config"), Some(path)) => path,
        (Some(_) | None, _) => return usage_error(),
    };
    let load = || node::Config::load(Path::new(&path));
    let done = match verb.as_str() {
        "run" => load().and_then(|config| {
            let ended = node::run(&config, &node::Timing::default(), &Default::default());
            ended.map(|_| String::new())
        }),
        "status" => {
            load().and_then(|config| node::status(&config).map(|status| status.to_string()))
        }
        "unit" => Ok(node::unit(&own_path())),
        "enroll" => {
            load().and_then(|config| match node::enroll(&config, &node::Timing::default()) {
                Ok(name) => Ok(format!("this is {name}\n")),
                Err(
                    node::NotEnrolled::Unreachable(message) | node::NotEnrolled::Refused(message),
                ) => Err(message),
            })
        }
        _ => return usage_error(),
    };
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            print_line(&message);
            ExitCode::from(2)
        }
    }
}

fn run_deployment(arguments: &Arguments) -> Result<FinalAction, String> {
    let cmdline = match &arguments.cmdline {
        Some(text) => text.clone(),
        None => fs::read_to_string("/proc/cmdline")
            .map_err(|error| format!("/proc/cmdline: {error}"))?,
    };
    let config = DeployConfig {
        boot: BootParameters::parse(&cmdline)?,
        root: arguments.root.clone(),
        timing: Timing::default(),
    };
    agent::run(&config, &RealPlatform)
}

/// Reboots or powers off. On a real machine this does not return.
fn reboot_or_power_off(end: FinalAction, stay: bool) -> ExitCode {
    let (name, command) = match end {
        FinalAction::Reboot => ("reboot", RebootCommand::Restart),
        FinalAction::PowerOff => ("power off", RebootCommand::PowerOff),
    };
    print_line(name);
    if stay {
        return ExitCode::SUCCESS;
    }
    rustix::fs::sync();
    match reboot(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&format!("cannot {name}: {error}"));
            ExitCode::FAILURE
        }
    }
}
