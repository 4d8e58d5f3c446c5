//! `farrier window` and `farrier freeze`.

use super::rollout::parse_time;
use super::*;
use clap::builder::PossibleValuesParser;
use model::time::Timestamp;
use model::window::HoldsFor;

#[derive(Debug, Subcommand)]
pub enum WindowCommand {
    /// Let operations start only at some times of the week
    Create(WindowCreateArgs),
    /// List windows, and whether they are open
    List(StartRuleListArgs),
    /// Show one window, and when it opens or closes
    Get(WindowArg),
    /// Change the filter or the times of a window, or what it holds back
    Update(WindowUpdateArgs),
    /// Delete a window
    Delete(WindowDeleteArgs),
}

#[derive(Debug, Subcommand)]
pub enum FreezeCommand {
    /// Let no operation start until a time
    Create(FreezeCreateArgs),
    /// List freezes
    List(StartRuleListArgs),
    /// End a freeze now
    End(FreezeEndArgs),
}

const WINDOW_HELP: &str = "\
Examples:
  farrier window create night --filter labels.env=prod --open 'Mon-Fri 02:00-05:00 Europe/Berlin'
  farrier window create weekend --open 'Sat,Sun 00:00-24:00 UTC; daily 22:00-04:00 UTC'
  farrier window create night --open 'daily 02:00-05:00 UTC' --for everything

Fields of the filter: labels.KEY, rack_id, provider, machine_id.

A machine is open if no window selects it, or at least one that selects it is open, and no freeze
selects it. What was started finishes.";

#[derive(Debug, Args)]
pub struct WindowArg {
    /// ID of the window, from `farrier window list`
    pub window_id: String,
}

#[derive(Debug, Args)]
#[command(after_help = WINDOW_HELP)]
pub struct WindowCreateArgs {
    /// ID of the new window: letters, digits, '.', '_' and '-'
    pub window_id: String,
    /// Machines that it selects (default: all)
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// When it is open: days, two times and a time zone; several are separated by ';'
    #[arg(long, value_name = "TIMES")]
    pub open: String,
    /// What it holds back while it is closed
    #[arg(long = "for", value_name = "WHAT", value_parser = held_back(), default_value = "rollouts")]
    pub holds_for: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Filters:\n  holds_for=everything\n  name=night")]
pub struct StartRuleListArgs {
    #[command(flatten)]
    pub list: FilteredListArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farrier window update night --open 'daily 01:00-05:00 UTC'\n  farrier window update night --filter ''    for all machines"
)]
pub struct WindowUpdateArgs {
    /// ID of the window, from `farrier window list`
    pub window_id: String,
    /// Machines that it selects; empty: all
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// When it is open: days, two times and a time zone; several are separated by ';'
    #[arg(long, value_name = "TIMES")]
    pub open: Option<String>,
    /// What it holds back while it is closed
    #[arg(long = "for", value_name = "WHAT", value_parser = held_back())]
    pub holds_for: Option<String>,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
pub struct WindowDeleteArgs {
    /// ID of the window, from `farrier window list`
    pub window_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farrier freeze create year-end --until 2027-01-02T00:00:00Z --reason 'end of the year'\n  farrier freeze create audit --filter labels.env=prod --until 2026-12-01 --reason audit"
)]
pub struct FreezeCreateArgs {
    /// ID of the new freeze: letters, digits, '.', '_' and '-'
    pub freeze_id: String,
    /// Machines that it selects (default: all)
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// When it ends by itself, in UTC, e.g. 2026-01-31T02:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub until: Timestamp,
    /// Reason, for the people whose requests are refused
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// What it holds back
    #[arg(long = "for", value_name = "WHAT", value_parser = held_back(), default_value = "everything")]
    pub holds_for: String,
}

#[derive(Debug, Args)]
pub struct FreezeEndArgs {
    /// ID of the freeze, from `farrier freeze list`
    pub freeze_id: String,
    #[command(flatten)]
    pub version: VersionArgs,
}

fn held_back() -> PossibleValuesParser {
    PossibleValuesParser::new(HoldsFor::ALL.map(HoldsFor::as_str))
}
