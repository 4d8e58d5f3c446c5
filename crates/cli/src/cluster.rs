//! `farrier cluster`: check the access to a Kubernetes cluster.

use crate::args::{ClusterCheckArgs, ClusterCommand};
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::output::Screen;
use crate::table::{ColorMode, Tone};
use crate::text::one_line;
use proto::v1::cluster_finding::Outcome;
use proto::v1::{
    CheckClusterRequest, ClusterReport, DrainOptions, DrainPreview, PreviewDrainRequest,
};
use proto::words::WireEnum;

pub async fn run(client: &Client, screen: &mut Screen, command: ClusterCommand) -> Result<Exit> {
    match command {
        ClusterCommand::Check(args) => check(client, screen, args).await,
    }
}

async fn check(client: &Client, screen: &mut Screen, args: ClusterCheckArgs) -> Result<Exit> {
    let request = CheckClusterRequest { name: args.name };
    let report = client.call_hardware(client.clusters().check_cluster(request)).await?;
    let colors = screen.color_mode();
    screen.print_record(&report, |report| format_report(report, colors))?;
    Ok(if report.usable { Exit::Success } else { Exit::Unsuccessful })
}

/// Prints what a drain would do, after the dry run of an operation. Output for programs stays as it
/// is: one document.
pub async fn preview_drain(
    client: &Client,
    screen: &mut Screen,
    machine_id: &str,
    options: Option<DrainOptions>,
) -> Result<()> {
    if !screen.is_human() {
        return Ok(());
    }
    let request = PreviewDrainRequest { machine_id: machine_id.into(), options };
    let preview = client.call_hardware(client.clusters().preview_drain(request)).await?;
    screen.print_raw(&format_preview(&preview))
}

fn format_preview(preview: &DrainPreview) -> String {
    let (cluster, node) = (one_line(&preview.cluster), one_line(&preview.node));
    if cluster.is_empty() {
        return "\nThe machine is in no cluster: there is nothing to drain.\n".into();
    }
    if node.is_empty() {
        return format!("\nThe machine has no node in {cluster}: there is nothing to drain.\n");
    }
    let mut text = format!("\nPods on {node} in {cluster}: {}\n", preview.pods.len());
    for pod in &preview.pods {
        let word = pod.decision().word();
        let name = format!("{}/{}", one_line(&pod.namespace), one_line(&pod.name));
        let line = format!("  {word:11} {name}  {}", one_line(&pod.message));
        text.push_str(&format!("{}\n", line.trim_end()));
    }
    for budget in &preview.budgets {
        let name = format!("{}/{}", one_line(&budget.namespace), one_line(&budget.name));
        text.push_str(&format!(
            "  budget      {name}  allows {} now; healthy pods: {} of {} needed\n",
            budget.disruptions_allowed, budget.current_healthy, budget.desired_healthy
        ));
    }
    text
}

fn format_report(report: &ClusterReport, colors: ColorMode) -> String {
    let width = report.findings.iter().map(|one| one.check.chars().count()).max().unwrap_or(0);
    let mut text = format!("{}\n", one_line(&report.name));
    for finding in &report.findings {
        let (mark, tone, word) = match finding.outcome() {
            Outcome::Ok => ("✓", Tone::Good, "ok"),
            Outcome::Cannot => ("✗", Tone::Bad, "cannot"),
            Outcome::NotTried | Outcome::Unspecified => ("-", Tone::Dim, "not tried"),
        };
        let mark = colors.apply(tone, mark);
        let (check, message) = (one_line(&finding.check), one_line(&finding.message));
        text.push_str(&format!("  {mark} {check:width$}  {word:9}  {message}\n"));
    }
    let (summary, next) = (one_line(&report.summary), one_line(&report.next_command));
    text.push_str(&format!("\n{summary}\nnext: {next}\n"));
    text
}
