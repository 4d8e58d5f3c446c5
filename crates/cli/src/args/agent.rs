//! `farrier agent`: the commands that run on a node.

use super::*;

const RUN_HELP: &str = "\
It enrolls this node if needed, and then runs until it is killed or executes an uninstall task.
After a restart, an interrupted task is started again; a finished task is only reported again.

Under systemd:
  farrier agent unit > /etc/systemd/system/farrier-agent.service
  systemctl enable --now farrier-agent.service";

const ENROLL_HELP: &str = "\
The operator who adds the node provides the token. It works for one node until it expires, and
is read from `token` or `token_file`. Enrolling again with the same token changes nothing. With
a new token the node enrolls again.";

const CONFIG_HELP: &str = "Example:\n  farrier agent config > /etc/farrier/agent.toml";

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run the agent of this node
    #[command(after_help = RUN_HELP)]
    Run(AgentConfigArg),
    /// Enroll this node with its one-time token, then exit
    #[command(after_help = ENROLL_HELP)]
    Enroll(AgentConfigArg),
    /// Show the identity of this node, its current task, and the problems that block it
    Status(AgentConfigArg),
    /// Print the systemd unit that runs the agent
    Unit,
    /// Print an example of the agent's config file
    #[command(after_help = CONFIG_HELP)]
    Config,
}

#[derive(Debug, Args)]
pub struct AgentConfigArg {
    /// The agent's config file (TOML)
    #[arg(long, value_name = "FILE", default_value = ::agent::node::config::DEFAULT_PATH)]
    pub config: PathBuf,
}
