//! `farrier notify`.

use super::*;

const CREATE_HELP: &str = "\
The secret is a credential, bound to the host of the URL. See first whether it works:
`farrier notify test NAME`.

Filters, joined with AND:
  severity in (critical, error)    critical, error, warning, info
  type=farrier.operation.failed    also farrier.person.needed, farrier.person.no-longer-needed
  kind=machine                     operation, machine, rack, switch, power_shelf, node, site
  labels.env=prod                  of the machine, also for its operations and its node
  id, target_id, rack_id, fault

Examples:
  farrier credential set hook --user farrier --password-file key --for hooks.example.com
  farrier notify create ops --url https://hooks.example.com/farrier --credential hook \\
    --kind operation-failed --kind needs-person
  farrier notify create chat --format slack --credential slack --kind needs-person \\
    --url 'https://hooks.slack.com/services/{secret}' --filter 'labels.env=prod'
  farrier notify create pager --format pagerduty --credential pagerduty --kind needs-person \\
    --url https://events.pagerduty.com/v2/enqueue --filter 'severity in (critical, error)'";

#[derive(Debug, Subcommand)]
pub enum NotifyCommand {
    /// Create a notifier, which gets what happens from now on
    #[command(after_help = CREATE_HELP)]
    Create(Box<NotifierCreateArgs>),
    /// List notifiers with the state of their deliveries
    List(NotifierListArgs),
    /// Show one notifier with all details
    Get(NotifierArg),
    /// Change a notifier; values not given stay
    #[command(
        after_help = "Example:\n  farrier notify update ops --url https://hooks.example.com/2"
    )]
    Update(Box<NotifierUpdateArgs>),
    /// Delete a notifier with its dead letters
    Delete(NotifierDeleteArgs),
    /// Stop sending; what happens meanwhile is sent later
    Pause(NotifierArg),
    /// Go on where a pause began
    Resume(NotifierArg),
    /// Send a test notice now; exit with 1 if it is not accepted
    Test(NotifierArg),
    /// List the notices that the receiver did not accept
    DeadLetters(DeadLetterListArgs),
    /// Send dead letters again: all of a notifier, or those with these numbers
    Replay(DeadLetterArgs),
    /// Delete dead letters: all of a notifier, or those with these numbers
    Discard(DeadLetterArgs),
}

#[derive(Debug, Args)]
pub struct NotifierListArgs {
    /// Maximum number of results (default: all)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

#[derive(Debug, Args)]
pub struct NotifierArg {
    /// Name of the notifier, from `farrier notify list`
    pub name: String,
}

#[derive(Debug, Args)]
pub struct NotifierDeleteArgs {
    /// Name of the notifier, from `farrier notify list`
    pub name: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct NotifierCreateArgs {
    /// Name of the notifier
    pub name: String,
    #[command(flatten)]
    pub spec: NotifierSpecArgs,
}

#[derive(Debug, Args)]
pub struct NotifierUpdateArgs {
    /// Name of the notifier, from `farrier notify list`
    pub name: String,
    #[command(flatten)]
    pub spec: NotifierSpecArgs,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct NotifierSpecArgs {
    /// URL of the receiver; with --format slack it has {secret} in it
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Credential with the secret, from `farrier credential list`
    #[arg(long, value_name = "NAME")]
    pub credential: Option<String>,
    /// Form of the requests (default: cloudevents)
    #[arg(long, value_name = "FORMAT", value_parser = ["cloudevents", "slack", "pagerduty"])]
    pub format: Option<String>,
    /// What is sent; can be repeated
    #[arg(long = "kind", value_name = "KIND", value_parser = ["operation-failed", "needs-person"])]
    pub kinds: Vec<String>,
    /// Only notices that match
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Source of the events, which tells installations apart (default: /farrier)
    #[arg(long, value_name = "URI")]
    pub source: Option<String>,
    /// Number of attempts before a notice becomes a dead letter (default: 12)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_attempts: Option<u32>,
}

#[derive(Debug, Args)]
pub struct DeadLetterListArgs {
    /// Name of the notifier, from `farrier notify list`
    pub name: String,
    /// Maximum number of results (default: 100)
    #[arg(long, value_name = "N", default_value = "100", hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("letters").required(true).args(["numbers", "all"])))]
pub struct DeadLetterArgs {
    /// Name of the notifier, from `farrier notify list`
    pub name: String,
    /// Numbers of dead letters, from `farrier notify dead-letters`
    #[arg(value_name = "NUMBER")]
    pub numbers: Vec<i64>,
    /// All dead letters of the notifier
    #[arg(long)]
    pub all: bool,
}
