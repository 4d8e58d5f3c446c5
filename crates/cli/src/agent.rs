//! `farrier agent`: the agent of a node, in the same binary. It asks no server here; it has controllers of its own.

use crate::args::{AgentCommand, AgentConfigArg};
use crate::exit::{Exit, Failure};
use crate::output::Screen;
use crate::text::one_line;
use ::agent::node::config::EXAMPLE;
use ::agent::node::{self, Config, NotEnrolled, Timing, UNIT};
use std::sync::Arc;

pub fn run(screen: &mut Screen, command: AgentCommand) -> Result<Exit, Failure> {
    match command {
        AgentCommand::Run(args) => {
            let config = load(&args)?;
            let never = Arc::default();
            node::run(&config, &Timing::default(), &never).map_err(Failure::refused)?;
        }
        AgentCommand::Enroll(args) => {
            let name = node::enroll(&load(&args)?, &Timing::default()).map_err(not_enrolled)?;
            screen.say(&format!("this is {}", one_line(&name)))?;
        }
        AgentCommand::Status(args) => {
            let status = node::status(&load(&args)?).map_err(Failure::refused)?;
            screen.one(&status, ToString::to_string)?;
        }
        AgentCommand::Unit => screen.raw(UNIT)?,
        AgentCommand::Config => screen.raw(EXAMPLE)?,
    }
    Ok(Exit::Done)
}

fn load(args: &AgentConfigArg) -> Result<Config, Failure> {
    Config::load(&args.config).map_err(Failure::refused)
}

fn not_enrolled(why: NotEnrolled) -> Failure {
    match why {
        NotEnrolled::Unreachable(said) => Failure::new(Exit::Unreachable, said),
        NotEnrolled::Refused(said) => Failure::refused(said),
    }
}
