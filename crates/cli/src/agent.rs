//! `farrier agent`: the agent of a node, in the same binary. It does not use `--server`: its
//! configuration names its controllers.

use crate::args::{AgentCommand, AgentConfigArg};
use crate::exit::{Exit, Failure, Result};
use crate::output::Screen;
use crate::text::one_line;
use ::agent::node::config::EXAMPLE;
use ::agent::node::{self, Config, NotEnrolled, Timing, UNIT};
use std::sync::Arc;

pub fn run(screen: &mut Screen, command: AgentCommand) -> Result<Exit> {
    match command {
        AgentCommand::Run(args) => {
            let config = load_config(&args)?;
            let never = Arc::default();
            node::run(&config, &Timing::default(), &never).map_err(Failure::refused)?;
        }
        AgentCommand::Enroll(args) => {
            let name = node::enroll(&load_config(&args)?, &Timing::default())
                .map_err(enrollment_failure)?;
            screen.print_line(&format!("this is {}", one_line(&name)))?;
        }
        AgentCommand::Status(args) => {
            let status = node::status(&load_config(&args)?).map_err(Failure::refused)?;
            screen.print_value(&status, ToString::to_string)?;
        }
        AgentCommand::Unit => screen.print_raw(UNIT)?,
        AgentCommand::Config => screen.print_raw(EXAMPLE)?,
    }
    Ok(Exit::Success)
}

fn load_config(args: &AgentConfigArg) -> Result<Config> {
    Config::load(&args.config).map_err(Failure::refused)
}

fn enrollment_failure(why: NotEnrolled) -> Failure {
    match why {
        NotEnrolled::Unreachable(message) => Failure::new(Exit::Unreachable, message),
        NotEnrolled::Refused(message) => Failure::refused(message),
    }
}
