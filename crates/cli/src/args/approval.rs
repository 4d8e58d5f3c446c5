//! `farrier approve` and `farrier approval`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum ApprovalCommand {
    /// List the requests that wait for a second person, the newest first
    List(ApprovalListArgs),
    /// Show what a request would do, and who decided about it
    Get(ApprovalIdArg),
    /// Approve a request of another person
    Approve(ApprovalDecisionArgs),
    /// Deny a request, take an approval back, or withdraw your own request
    Deny(ApprovalDecisionArgs),
    /// Show or change which requests need a second person
    #[command(subcommand)]
    Policy(ApprovalPolicyCommand),
}

#[derive(Debug, Args)]
pub struct ApprovalListArgs {
    /// Also those that are denied, used, expired or reviewed
    #[arg(long)]
    pub all: bool,
    /// Maximum number of results (default: 100)
    #[arg(long, value_name = "N", default_value = "100", hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct ApprovalIdArg {
    /// ID of the approval, from `farrier approval list`
    pub approval_id: String,
}

#[derive(Debug, Args)]
pub struct ApprovalDecisionArgs {
    /// ID of the approval, from `farrier approval list`
    pub approval_id: String,
    /// What to tell the requester
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub comment: String,
}

#[derive(Debug, Subcommand)]
pub enum ApprovalPolicyCommand {
    /// Show which requests need a second person
    Get,
    /// Replace the policy
    #[command(
        after_help = "Examples:\n  farrier approval policy set --permission destroy --permission power\n  \
                      farrier approval policy set --none"
    )]
    Set(ApprovalPolicyArgs),
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("classes").required(true).args(["permissions", "none"])))]
pub struct ApprovalPolicyArgs {
    /// Requests that need it need a second person; may be repeated
    #[arg(long = "permission", value_name = "PERMISSION",
          value_parser = ["operate", "destroy", "power", "firmware", "execute"])]
    pub permissions: Vec<String>,
    /// No request needs a second person
    #[arg(long)]
    pub none: bool,
    /// How long a request waits, and how long an approval is valid (default: 1h)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub expires_in: Option<Duration>,
}
