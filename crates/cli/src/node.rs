//! Nodes: machines in service, and the operations that change that.
//!
//! A list shows only the coarse states. `get` shows three layers: the node's state, its workflow,
//! and the MAAS status of its machine. An operation on a node is followed like any other.

use crate::args::{
    NodeCommand, NodeDecommissionArgs, NodeDrainArgs, NodeListArgs, NodeOnboardArgs,
    NodeOperationArgs, gate_override,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::filter::FilterText;
use crate::operation::{
    AcceptedOperation, ExpectedEnd, RunOrigin, follow_or_report, format_steps,
    request_id_unless_dry_run, time_line, usual_cell,
};
use crate::output::Screen;
use crate::plan::destructive_cell;
use crate::table::{Cell, ColorMode, Table, Tone};
use crate::text::{join_pairs, one_line};
use crate::time::Clock;
use crate::watch::watch_nodes;
use proto::v1::{
    DecommissionMode, DecommissionNodeRequest, DrainNodeRequest, GetNodeRequest, ListNodesRequest,
    Node, NodeDetail, NodeOperation, NodeState, OnboardNodeRequest, PreviewedStep,
    QuarantineNodeRequest, ReactivateNodeRequest, ReleaseNodeRequest, ResumeNodeRequest,
    ResumeNodeResponse, ResumedTask, RetireNodeRequest,
};
use proto::words::{self, WireEnum};

mod bootstrap;
mod detail;

pub async fn run(client: &Client, screen: &mut Screen, command: NodeCommand) -> Result<Exit> {
    match command {
        NodeCommand::List(args) => list(client, screen, &args).await?,
        NodeCommand::Get(args) => {
            let node = fetch(client, &args.node_id).await?;
            screen.print_record(&node, |node| detail::describe(node, &Clock::system()))?;
        }
        NodeCommand::Watch(args) => return watch_nodes(client, screen, args.filter).await,
        NodeCommand::Onboard(args) => return onboard(client, screen, args).await,
        NodeCommand::Decommission(args) => return decommission(client, screen, args).await,
        NodeCommand::Drain(args) => return drain(client, screen, args).await,
        NodeCommand::Retire(args) => return retire(client, screen, args).await,
        NodeCommand::Reactivate(args) => {
            let gate_override = gate_override(&args.gates, &args.reason);
            let (node_id, reason) = (args.node_id, args.reason);
            let request_id = args.request_id.unwrap_or_default();
            let request = ReactivateNodeRequest {
                node_id,
                reason,
                gate_override,
                request_id,
                dry_run: client.is_dry_run(),
            };
            let done = client.call(client.nodes().reactivate_node(request)).await?;
            screen.print_record(&done, |done| request_summary(done, client.is_dry_run()))?;
        }
        NodeCommand::Resume(args) => {
            let request = ResumeNodeRequest { node_id: args.node_id, dry_run: client.is_dry_run() };
            let resumed = client.call(client.nodes().resume_node(request)).await?;
            screen
                .print_record(&resumed, |resumed| resume_summary(resumed, client.is_dry_run()))?;
        }
        NodeCommand::Quarantine(args) => {
            let request = QuarantineNodeRequest {
                node_id: args.node_id,
                reason: args.reason,
                dry_run: client.is_dry_run(),
            };
            let node = client.call(client.nodes().quarantine_node(request)).await?;
            screen.print_record(&node, |node| state_sentence(node, client.is_dry_run()))?;
        }
        NodeCommand::Release(args) => {
            let gate_override = gate_override(&args.gates, &args.reason);
            let (node_id, reason) = (args.node_id, args.reason);
            let request_id = args.request_id.unwrap_or_default();
            let request = ReleaseNodeRequest {
                node_id,
                reason,
                gate_override,
                request_id,
                dry_run: client.is_dry_run(),
            };
            let done = client.call(client.nodes().release_node(request)).await?;
            screen.print_record(&done, |done| request_summary(done, client.is_dry_run()))?;
        }
        NodeCommand::Bootstrap(args) => bootstrap::run(client, screen, args).await?,
    }
    Ok(Exit::Success)
}

pub async fn fetch(client: &Client, node_id: &str) -> Result<NodeDetail> {
    let request = GetNodeRequest { node_id: node_id.to_string() };
    client.call(client.nodes().get_node(request)).await
}

async fn list(client: &Client, screen: &mut Screen, args: &NodeListArgs) -> Result<()> {
    let filter = FilterText::typed(&args.filter)
        .any_of("state", &args.states)
        .equal("site_id", &args.site)
        .equal("machine_id", &args.machine)
        .build();
    let nodes = fetch_pages(args.limit, async |page_size, page_token| {
        let (filter, order_by) = (filter.clone(), args.sort.order_by.clone());
        let request = ListNodesRequest { filter, page_size, page_token, order_by };
        let page = client.call(client.nodes().list_nodes(request)).await?;
        Ok((page.nodes, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    let none = match filter.is_empty() {
        true => "no nodes; make one with `farrier node onboard MACHINE --site SITE`",
        false => "no nodes match",
    };
    let clock = Clock::system();
    screen.print_list(&nodes, |nodes, wide| table(nodes, wide, &clock), none)
}

async fn onboard(client: &Client, screen: &mut Screen, args: NodeOnboardArgs) -> Result<Exit> {
    let NodeOnboardArgs { machine_id, site, overrides, options } = args;
    let would =
        format!("would onboard {} at {} as a new node", one_line(&machine_id), one_line(&site));
    let request_id = request_id_unless_dry_run(client, screen, &options.submit)?;
    let request = OnboardNodeRequest {
        machine_id,
        site_id: site,
        request_id,
        dry_run: client.is_dry_run(),
        gate_override: overrides.to_message(),
    };
    let answer = client.call_hardware(client.nodes().onboard_node(request)).await?;
    report_operation(client, screen, answer, (&would, &options)).await
}

async fn decommission(
    client: &Client,
    screen: &mut Screen,
    args: NodeDecommissionArgs,
) -> Result<Exit> {
    let NodeDecommissionArgs { node_id, mode, overrides, options } = args;
    let would = format!("would decommission {}: {}", one_line(&node_id), mode.wire_name());
    let request = DecommissionNodeRequest {
        node_id,
        mode: words::value::<DecommissionMode>(mode.wire_name()),
        request_id: request_id_unless_dry_run(client, screen, &options.submit)?,
        dry_run: client.is_dry_run(),
        gate_override: overrides.to_message(),
    };
    let answer = client.call_hardware(client.nodes().decommission_node(request)).await?;
    report_operation(client, screen, answer, (&would, &options)).await
}

async fn drain(client: &Client, screen: &mut Screen, args: NodeDrainArgs) -> Result<Exit> {
    let NodeDrainArgs { node_id, overrides, options } = args;
    let (dry_run, gate_override) = (client.is_dry_run(), overrides.to_message());
    let would = format!("would drain {}", one_line(&node_id));
    let request_id = request_id_unless_dry_run(client, screen, &options.submit)?;
    let request = DrainNodeRequest { node_id, request_id, dry_run, gate_override };
    let answer = client.call_hardware(client.nodes().drain_node(request)).await?;
    report_operation(client, screen, answer, (&would, &options)).await
}

async fn retire(client: &Client, screen: &mut Screen, args: NodeDrainArgs) -> Result<Exit> {
    let NodeDrainArgs { node_id, overrides, options } = args;
    let (dry_run, gate_override) = (client.is_dry_run(), overrides.to_message());
    let would = format!("would retire {}", one_line(&node_id));
    let request_id = request_id_unless_dry_run(client, screen, &options.submit)?;
    let request = RetireNodeRequest { node_id, request_id, dry_run, gate_override };
    let answer = client.call_hardware(client.nodes().retire_node(request)).await?;
    report_operation(client, screen, answer, (&would, &options)).await
}

/// Prints the steps of a dry run, or follows the operation to its end and prints the node's state.
async fn report_operation(
    client: &Client,
    screen: &mut Screen,
    answer: NodeOperation,
    (would, options): (&str, &NodeOperationArgs),
) -> Result<Exit> {
    if client.is_dry_run() {
        let colors = screen.color_mode();
        screen.print_record(&answer, |answer| format_preview(would, answer, colors))?;
        return Ok(Exit::Success);
    }
    let node = answer.node.unwrap_or_default();
    let run = answer.run.ok_or_else(|| Failure::bug("the server's answer has no operation"))?;
    screen.print_line(&node_line(&node))?;
    let origin = RunOrigin::Submitted { replayed: !answer.new };
    let expected_end = ExpectedEnd::Succeeded;
    let accepted = AcceptedOperation { run, expected_end, origin, before: None };
    let exit = follow_or_report(client, screen, accepted, &options.submit.wait).await?;
    // The result is already printed, so an error of this call is ignored.
    if options.submit.wait.waits()
        && let Ok(NodeDetail { node: Some(node), .. }) = fetch(client, &node.node_id).await
    {
        screen.print_line(&node_line(&node))?;
    }
    Ok(exit)
}

/// The line about the node in the output of a followed operation.
fn node_line(node: &Node) -> String {
    format!("Node: {} ({})", one_line(&node.node_id), node.state().word())
}

fn format_preview(would: &str, answer: &NodeOperation, colors: ColorMode) -> String {
    let mut text = format!("{would}\n");
    if !answer.observed.is_empty() {
        text.push_str(&format!("{}\n", one_line(&answer.observed)));
    }
    text.push('\n');
    let preview = answer.run.as_ref().and_then(|run| run.preview.clone()).unwrap_or_default();
    let mut table = Table::new(&["STEP", "USUAL", "DESTRUCTIVE", "WOULD"]);
    for stage in &answer.stages {
        let named =
            |one: &&PreviewedStep| one.step.as_ref().is_some_and(|step| step.name == stage.stage);
        let step = preview.steps.iter().find(named);
        let usual = step.map(|one| usual_cell(one.usual_ms, one.usual_p95_ms)).unwrap_or_default();
        let destructive = destructive_cell(step.is_some_and(|one| one.destructive));
        let cell = match (stage.adopted, stage.why.as_str()) {
            (false, _) => Cell::from("would run"),
            (true, "") => Cell::with_tone("would be adopted", Tone::Dim),
            (true, why) => Cell::with_tone(format!("would be adopted: {why}"), Tone::Dim),
        };
        table.add_row(vec![(&stage.stage).into(), usual.into(), destructive, cell]);
    }
    text.push_str(&table.render(colors));
    text.push_str(&format!("\n{}", note_lines(&answer.notes)));
    let usual = (preview.usual_ms, preview.usual_p95_ms);
    text.push_str(&time_line(usual, preview.limit_seconds));
    text
}

fn note_lines(notes: &[String]) -> String {
    notes.iter().map(|note| format!("{}\n", one_line(note))).collect()
}

/// The node's state and its reason, as one sentence.
fn state_sentence(node: &Node, dry_run: bool) -> String {
    let because = match node.reason.as_str() {
        "" => String::new(),
        reason => format!(": {}", one_line(reason)),
    };
    let is = if dry_run { "would be" } else { "is" };
    format!("{} {is} {}{because}\n", one_line(&node.node_id), node.state().word())
}

fn request_summary(done: &NodeOperation, dry_run: bool) -> String {
    let node = done.node.clone().unwrap_or_default();
    let uncordons = done.run.as_ref().map(|run| match dry_run {
        true => {
            let preview = run.preview.clone().unwrap_or_default();
            let usual = (preview.usual_ms, preview.usual_p95_ms);
            let time = time_line(usual, preview.limit_seconds);
            format!("an operation would let its cluster place work on it again\n{time}")
        }
        false => {
            let id = one_line(&run.run_id);
            format!("{id} lets its cluster place work on it again: farrier operation logs {id}\n")
        }
    });
    let (state, notes) = (state_sentence(&node, dry_run), note_lines(&done.notes));
    format!("{state}{notes}{}", uncordons.unwrap_or_default())
}

fn resume_summary(resumed: &ResumeNodeResponse, dry_run: bool) -> String {
    let node = resumed.node.clone().unwrap_or_default();
    let run = one_line(&resumed.run_id);
    let work = match (resumed.reopened, dry_run) {
        (true, true) => format!("{run} has ended, and would go on"),
        (true, false) => format!("{run} had ended, and goes on"),
        (false, _) => format!("{run} is at work on it"),
    };
    let task = match (resumed.task(), dry_run) {
        (ResumedTask::Fresh, _) => "; its task is in the queue already",
        (ResumedTask::Live, _) => "; its agent is at work on its task",
        (ResumedTask::Requeued, true) => "; its task would be put into the queue again",
        (ResumedTask::Requeued, false) => "; its task is in the queue again",
        (ResumedTask::None | ResumedTask::Unspecified, _) => "",
    };
    let next = match (dry_run, &resumed.preview) {
        (true, Some(preview)) => format_steps(preview),
        (true, None) => String::new(),
        (false, _) => format!("\nNext: farrier operation watch {run}\n"),
    };
    format!("{}  {work}{task}\n{next}", state_sentence(&node, dry_run))
}

const fn state_tone(state: NodeState) -> Tone {
    match state {
        NodeState::Active => Tone::Good,
        NodeState::Offline => Tone::Warn,
        NodeState::Quarantined => Tone::Bad,
        NodeState::Enrolling | NodeState::Draining | NodeState::Removing => Tone::Busy,
        NodeState::Retired | NodeState::Deleted => Tone::Dim,
        NodeState::BootstrapIssued | NodeState::Unspecified => Tone::Plain,
    }
}

fn table(nodes: &[Node], wide: bool, clock: &Clock) -> Table {
    let names = ["NODE", "STATE", "MACHINE", "SITE", "SINCE", "REASON"];
    let more = ["MOVED_BY", "CREATED", "LABELS", "VERSION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for node in nodes {
        let mut row: Vec<Cell> = vec![
            (&node.node_id).into(),
            Cell::with_tone(node.state().word(), state_tone(node.state())),
            (&node.machine_id).into(),
            (&node.site_id).into(),
            clock.ago(node.since.as_ref()).into(),
            (&node.reason).into(),
        ];
        if wide {
            row.extend([
                node.moved_by().word().into(),
                clock.absolute(node.created_at.as_ref()).into(),
                join_pairs(&node.labels, ",").into(),
                node.version.to_string().into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Timestamp;
    use proto::v1::{OperationPreview, Run, StagePreview, Step};

    fn node() -> Node {
        Node {
            node_id: "node-1".into(),
            state: NodeState::Quarantined.into(),
            machine_id: "machine-1".into(),
            site_id: "site-a".into(),
            reason: "MAAS has its machine as Ready, not as Deployed".into(),
            since: Some(Timestamp { seconds: 40, nanos: 0 }),
            ..Node::default()
        }
    }

    #[test]
    fn a_list_has_the_coarse_states_only() {
        let by_hand = Node {
            node_id: "node-2".into(),
            state: NodeState::Active.into(),
            machine_id: "machine-2".into(),
            ..Node::default()
        };
        assert_eq!(
            table(&[node(), by_hand], false, &Clock::fixed(100))
                .render(ColorMode { enabled: false }),
            "\
NODE    STATE        MACHINE    SITE    SINCE      REASON
node-1  quarantined  machine-1  site-a  1m 0s ago  MAAS has its machine as Ready, not as Deployed
node-2  active       machine-2  -       -          -
"
        );
    }

    #[test]
    fn a_dry_run_says_what_would_run_and_what_is_adopted() {
        let stage = |stage: &str, why: &str| StagePreview {
            stage: stage.into(),
            adopted: !why.is_empty(),
            why: why.into(),
        };
        let step = Step { name: "load_site_config".into(), ..Step::default() };
        let preview = OperationPreview {
            steps: vec![PreviewedStep {
                step: Some(step),
                usual_ms: 2_000,
                usual_p95_ms: 3_000,
                destructive: true,
                ..PreviewedStep::default()
            }],
            limit_seconds: 60,
            usual_ms: 2_000,
            usual_p95_ms: 3_000,
            ..OperationPreview::default()
        };
        let answer = NodeOperation {
            stages: vec![
                stage("load_site_config", ""),
                stage("commission_node", "MAAS has the machine as Ready"),
            ],
            observed: "MAAS has the machine as Ready".into(),
            run: Some(Run { preview: Some(preview), ..Run::default() }),
            notes: vec!["gate health refuses it, and the override passes it".into()],
            ..NodeOperation::default()
        };
        assert_eq!(
            format_preview(
                "would onboard machine-1 at site-a as a new node",
                &answer,
                ColorMode { enabled: false }
            ),
            "\
would onboard machine-1 at site-a as a new node
MAAS has the machine as Ready

STEP              USUAL         DESTRUCTIVE  WOULD
load_site_config  2s, up to 3s  yes          would run
commission_node   -             -            would be adopted: MAAS has the machine as Ready

gate health refuses it, and the override passes it
time: usually 2s, up to 3s
"
        );
    }

    #[test]
    fn a_resume_says_what_it_has_found() {
        let resumed = |task: &str, reopened| ResumeNodeResponse {
            node: Some(Node { state: NodeState::Draining.into(), reason: String::new(), ..node() }),
            run_id: "op-1".into(),
            task: words::value::<ResumedTask>(task),
            reopened,
            preview: None,
        };
        let expected = "\
node-1 is draining
  op-1 is at work on it; its task is in the queue again

Next: farrier operation watch op-1
";
        assert_eq!(resume_summary(&resumed("requeued", false), false), expected);
        let would = resume_summary(&resumed("requeued", true), true);
        assert_eq!(
            would,
            "node-1 would be draining\n  op-1 has ended, and would go on; its task would be put into the queue again\n"
        );
        for (task, reopened, message) in [
            ("fresh", false, "in the queue already"),
            ("live", false, "its agent is at work on its task"),
            ("none", false, "  op-1 is at work on it\n"),
            ("none", true, "  op-1 had ended, and goes on\n"),
        ] {
            let reported = resume_summary(&resumed(task, reopened), false);
            assert!(reported.contains(message), "{reported}");
        }
    }
}
