//! Plans: the ordered steps of a run. A plan is immutable.

use crate::args::{ListArgs, PlanCommand, PlanCreateArgs};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::import::file::{FileSyntax, parse_as, read_file};
use crate::operation::type_label;
use crate::output::Screen;
use crate::table::{Cell, ColorMode, Table, format_pairs};
use proto::v1::{
    CreatePlanRequest, GetPlanRequest, KubeadmJoin, ListPlansRequest, OnFailure, Plan, Step,
    VerifyInCluster, step::Kind,
};
use proto::words::WireEnum;

pub async fn run(client: &Client, screen: &mut Screen, command: PlanCommand) -> Result<Exit> {
    match command {
        PlanCommand::Get(args) => {
            let plan = client
                .call(client.plans().get_plan(GetPlanRequest { plan_id: args.plan_id }))
                .await?;
            screen.print_record(&plan, describe)?;
            Ok(Exit::Success)
        }
        PlanCommand::List(args) => list(client, screen, &args).await,
        PlanCommand::Create(args) => create(client, screen, &args).await,
    }
}

pub async fn list(client: &Client, screen: &mut Screen, args: &ListArgs) -> Result<Exit> {
    let plans = fetch_pages(args.limit, async |page_size, page_token| {
        let request = ListPlansRequest { filter: args.filter.clone(), page_size, page_token };
        let answer = client.call(client.plans().list_plans(request)).await?;
        Ok((answer.plans, answer.next_page_token, answer.unreadable_rows))
    })
    .await?;
    screen.print_list(&plans, table, "no plans match")?;
    Ok(Exit::Success)
}

async fn create(client: &Client, screen: &mut Screen, args: &PlanCreateArgs) -> Result<Exit> {
    let syntax = FileSyntax::from_path(&args.file).filter(|syntax| *syntax != FileSyntax::Csv);
    let Some(syntax) = syntax else {
        let file = args.file.display();
        return Err(Failure::refused(format!(
            "{file}: a plan is a .yaml or .json file; see `farrier plan create --help`"
        )));
    };
    let text = read_file(&args.file)?;
    let plan: Plan = parse_as(&args.file, &text, syntax)?;
    let dry_run = client.is_dry_run();
    let plan = client
        .call(client.plans().create_plan(CreatePlanRequest { plan: Some(plan), dry_run }))
        .await?;
    screen.print_record(&plan, |plan| {
        format!("plan {} {}\n\n{}", plan.plan_id, client.outcome("created"), describe(plan))
    })?;
    Ok(Exit::Success)
}

fn table(plans: &[Plan], wide: bool) -> Table {
    let names = ["PLAN_ID", "DEFAULT_FOR", "STEPS", "BUILT_IN", "NAME"];
    let more = ["ON_FAILURE", "STEP_NAMES"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for plan in plans {
        let mut row: Vec<Cell> = vec![
            (&plan.plan_id).into(),
            type_label(&plan.default_for).into(),
            plan.steps.len().to_string().into(),
            if plan.built_in { "✓" } else { "-" }.into(),
            (&plan.display_name).into(),
        ];
        if wide {
            let steps: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
            row.extend([on_failure(plan).into(), steps.join(",").into()]);
        }
        table.add_row(row);
    }
    table
}

fn on_failure(plan: &Plan) -> &'static str {
    match plan.on_failure() {
        OnFailure::Unspecified => "-",
        OnFailure::EnterMaintenance => "ENTER_MAINTENANCE",
    }
}

fn describe(plan: &Plan) -> String {
    let mut facts = vec![
        ("Plan:", plan.plan_id.clone()),
        ("Name:", plan.display_name.clone()),
        ("DefaultFor:", type_label(&plan.default_for).into()),
        ("BuiltIn:", if plan.built_in { "yes" } else { "no" }.into()),
        ("OnFailure:", on_failure(plan).into()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut table = Table::new(&["STEP", "KIND", "TIMEOUT", "RETRIES", "WHAT"]);
    for step in &plan.steps {
        table.add_row(step_cells(step, []));
    }
    format!("{}\n{}", format_pairs(&facts), table.render(ColorMode { enabled: false }))
}

/// Adds the row of a step in a dry run, with its usual time.
pub fn add_previewed_step(table: &mut Table, step: &Step, usual: String, destructive: bool) {
    table.add_row(step_cells(step, [usual.into(), destructive_cell(destructive)]));
}

/// The cell that says whether a step erases data, a system or firmware.
pub fn destructive_cell(destructive: bool) -> Cell {
    if destructive { "yes" } else { "-" }.into()
}

/// The cells of a step; `more` stand before the last.
fn step_cells<const N: usize>(step: &Step, more: [Cell; N]) -> Vec<Cell> {
    let (kind, what) = step_summary(step);
    let number =
        |value: Option<i32>, unit| value.map_or_else(String::new, |value| format!("{value}{unit}"));
    let mut row: Vec<Cell> = vec![
        (&step.name).into(),
        kind.into(),
        number(step.timeout_seconds, "s").into(),
        number(step.max_retries, "").into(),
    ];
    row.extend(more);
    row.push(what.into());
    row
}

/// The kind of a step, and its parameters as text.
fn step_summary(step: &Step) -> (&'static str, String) {
    match step.kind.clone() {
        Some(Kind::Ssh(ssh)) if ssh.destructive => {
            ("ssh", format!("{} (destructive)", ssh.command))
        }
        Some(Kind::Ssh(ssh)) => ("ssh", ssh.command),
        Some(Kind::Reboot(reboot)) => {
            ("reboot", format_power_off(&reboot.mode, reboot.graceful_seconds, reboot.force))
        }
        Some(Kind::Netboot(netboot)) => ("netboot", netboot.mode),
        Some(Kind::Repave(repave)) => ("repave", repave.image),
        Some(Kind::Join(join)) => ("join", format_join(&join)),
        Some(Kind::Verify(verify)) => ("verify", format_verify(&verify)),
        Some(Kind::Net(net)) => ("net", net.document),
        Some(Kind::Rma(rma)) => {
            ("rma", format_power_off(rma.action().word(), rma.graceful_seconds, rma.force))
        }
        Some(Kind::Drain(drain)) => {
            let deadline = drain.deadline_seconds.map(|seconds| format!("within {seconds}s"));
            ("drain", join_words(&[&drain.cluster_ref, &deadline.unwrap_or_default()]))
        }
        Some(Kind::Uncordon(uncordon)) => ("uncordon", uncordon.cluster_ref),
        Some(Kind::Power(power)) => {
            ("power", format_power_off(power.to().word(), power.graceful_seconds, power.force))
        }
        Some(Kind::Device(device)) => {
            let mut details: Vec<String> =
                device.details.iter().map(|(key, value)| format!("{key} {value}")).collect();
            details.sort();
            ("device", join_words(&[device.work().word(), &details.join(", ")]))
        }
        Some(Kind::Stage(stage)) => ("stage", stage.stage.clone()),
        Some(Kind::Parts(parts)) => {
            ("parts", format!("{} devices, {} at once", parts.target_ids.len(), parts.at_once))
        }
        None => ("-", String::new()),
    }
}

fn format_verify(verify: &VerifyInCluster) -> String {
    let advisory = if verify.advisory { "advisory" } else { "" };
    join_words(&[&verify.cluster_ref, verify.expect().word(), advisory])
}

/// The action, and the power-off policy if the step sets one.
fn format_power_off(what: &str, graceful_seconds: Option<i32>, force: Option<bool>) -> String {
    let graceful = match graceful_seconds {
        None => String::new(),
        Some(0) => "at once".into(),
        Some(seconds) => format!("graceful {seconds}s"),
    };
    let force = match force {
        None => "",
        Some(true) => "force",
        Some(false) => "no force",
    };
    join_words(&[what, &graceful, force])
}

/// The cluster, and the labels and taints of the node.
fn format_join(join: &KubeadmJoin) -> String {
    let mut labels: Vec<String> =
        join.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.sort();
    let taints = join.taints.iter().map(|taint| match taint.value.as_str() {
        "" => format!("{}:{}", taint.key, taint.effect),
        value => format!("{}={value}:{}", taint.key, taint.effect),
    });
    let taints: Vec<String> = taints.collect();
    join_words(&[&join.cluster_ref, &labels.join(","), &taints.join(",")])
}

/// Joins the words that are not empty.
fn join_words(all: &[&str]) -> String {
    let message: Vec<&str> = all.iter().copied().filter(|name| !name.is_empty()).collect();
    message.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_help_s_example_is_a_plan() {
        let text = "\
plan_id: repave-a
display_name: Repave and join
steps:
  - {name: set-netboot, timeout_seconds: 60, max_retries: 2, netboot: {mode: PXE}}
  - {name: repave, repave: {image: ubuntu-2204}}
  - {name: join-cluster, join: {cluster_ref: cluster-a}}
";
        let plan: Plan = parse_as(Path::new("p.yaml"), text, FileSyntax::Yaml).unwrap();
        assert_eq!(
            describe(&plan),
            "\
Plan:       repave-a
Name:       Repave and join
BuiltIn:    no
OnFailure:  -

STEP          KIND     TIMEOUT  RETRIES  WHAT
set-netboot   netboot  60s      2        PXE
repave        repave   -        -        ubuntu-2204
join-cluster  join     -        -        cluster-a
"
        );
    }

    #[test]
    fn every_kind_says_what_is_particular_to_it() {
        let text = "\
plan_id: all
steps:
  - {name: a, drain: {deadline_seconds: 60}}
  - {name: b, power: {to: \"OFF\", graceful_seconds: 0}}
  - {name: c, reboot: {mode: bmc, graceful_seconds: 30, force: false}}
  - {name: d, rma: {action: POWER_OFF, force: true}}
  - {name: e, uncordon: {cluster_ref: c1}}
  - {name: f, join: {labels: {zone: a, gpu: h100}, taints: [{key: gpu, effect: NoSchedule}]}}
";
        let plan: Plan = parse_as(Path::new("p.yaml"), text, FileSyntax::Yaml).unwrap();
        let reported: Vec<String> = plan
            .steps
            .iter()
            .map(|step| {
                let (kind, what) = step_summary(step);
                format!("{kind}: {what}")
            })
            .collect();
        assert_eq!(
            reported,
            [
                "drain: within 60s",
                "power: OFF at once",
                "reboot: bmc graceful 30s no force",
                "rma: POWER_OFF force",
                "uncordon: c1",
                "join: gpu=h100,zone=a gpu:NoSchedule",
            ]
        );
    }
}
