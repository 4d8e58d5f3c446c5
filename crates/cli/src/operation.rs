//! Operations: asking for one, seeing it through, and listing them.
//!
//! Every command that starts or moves an operation ends here, so that all of them wait, print and
//! exit alike. An operation and a run are one record; both are followed as a run, and a program that
//! reads JSON gets back the one it asked for.

use crate::args::{ListArgs, SubmitArgs, WaitArgs};
use crate::client::{Client, pages};
use crate::exit::{Exit, Failure};
use crate::follow::boxes::{Passage, aftermath, closing, error_lines, opening, verdict};
use crate::follow::feed::is_over;
use crate::follow::progress::Progress;
use crate::follow::{Start, follow};
use crate::machine::{effective_name, fetch_of, phase_name as phase_of};
use crate::output::Screen;
use crate::run::describe;
use crate::table::{Cell, Table};
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{
    GetOperationRequest, ListOperationsRequest, Machine, Operation, OperationType, Run, operation,
    run::Phase,
};

/// What the caller asked for, and gets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Operation,
    Run,
}

/// The end that counts as success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    Succeed,
    Cancel,
}

impl Goal {
    fn exit(self, phase: Phase) -> Exit {
        match (self, phase) {
            (Goal::Succeed, Phase::Succeeded) | (Goal::Cancel, Phase::Canceled) => Exit::Done,
            (Goal::Succeed | Goal::Cancel, _) => Exit::OperationEnded,
        }
    }
}

/// How the run came to be followed.
pub enum Origin {
    /// It was just asked for. One that has already ended is an old one, found by its request id.
    Submitted,
    /// It was there, and an operator did something to it.
    Acted { told: Progress, log_offset: i64 },
    /// Somebody wants to see it.
    Watched,
}

/// An accepted request.
pub struct Errand {
    pub run: Run,
    pub view: View,
    pub goal: Goal,
    pub origin: Origin,
    /// The machine as it was before the request; unknown when nobody waits.
    pub before: Option<Machine>,
}

/// An operation as a run, as far as it goes.
pub fn as_run(operation: Operation) -> Run {
    Run {
        r#type: type_name(&operation).to_string(),
        run_id: operation.operation_id,
        machine_id: operation.machine_id,
        target_kind: operation.target_kind,
        target_id: operation.target_id,
        request_id: operation.request_id,
        phase: operation.phase,
        error: operation.error,
        created_at: operation.created_at,
        started_at: operation.started_at,
        finished_at: operation.finished_at,
        ..Default::default()
    }
}

pub fn type_name(operation: &Operation) -> &'static str {
    let kind = operation.r#type();
    if kind == OperationType::Unspecified { "-" } else { kind.as_str_name() }
}

pub fn phase_name(operation: &Operation) -> &'static str {
    let phase = operation.phase();
    if phase == operation::Phase::Unspecified { "-" } else { phase.as_str_name() }
}

/// What an operation acts on: its machine, or what else it is.
pub fn target_name<'a>(machine_id: &'a str, target_id: &'a str) -> &'a str {
    if machine_id.is_empty() { target_id } else { machine_id }
}

/// What it is called where one operation is shown.
pub fn target_noun(kind: &str) -> &'static str {
    match kind {
        "rack" => "Rack:",
        "switch" => "Switch:",
        "power_shelf" => "Power shelf:",
        _ => "Machine:",
    }
}

/// The request id that was given, or a new one, shown before it is used.
pub fn request_id(screen: &mut Screen, given: Option<&String>) -> Result<String, Failure> {
    if let Some(given) = given {
        return Ok(given.clone());
    }
    let made = format!("req-{:012x}", rand::random::<u64>() >> 16);
    screen.tell(&format!("request-id: {made}  (repeat with --request-id to retry safely)"))?;
    Ok(made)
}

/// The same for what may be a dry run: what starts nothing needs no name.
pub fn asked_as(
    screen: &mut Screen,
    dry_run: bool,
    submit: &SubmitArgs,
) -> Result<String, Failure> {
    match dry_run {
        true => Ok(submit.request_id.clone().unwrap_or_default()),
        false => request_id(screen, submit.request_id.as_ref()),
    }
}

/// Waits for the operation if that is wanted, prints what there is to print, and gives the exit code.
pub async fn see_through(
    client: &Client,
    screen: &mut Screen,
    errand: Errand,
    wait: &WaitArgs,
) -> Result<Exit, Failure> {
    if matches!(errand.origin, Origin::Submitted) && is_over(errand.run.phase()) {
        return replayed(client, screen, &errand).await;
    }
    if !wait.waits() {
        let line = format!(
            "Operation: {} ({})\nnext: farrier run watch {}",
            one_line(&errand.run.run_id),
            errand.run.phase().as_str_name(),
            one_line(&errand.run.run_id)
        );
        screen.say(&line)?;
        show(client, screen, errand.view, &errand.run).await?;
        return Ok(Exit::Done);
    }
    accompany(client, screen, errand, wait.timeout).await
}

/// The same request again: the same answer, and no new work.
async fn replayed(client: &Client, screen: &mut Screen, errand: &Errand) -> Result<Exit, Failure> {
    let run = &errand.run;
    let phase = run.phase();
    screen.say(&format!(
        "Operation: {} ({})  same operation, no new work",
        one_line(&run.run_id),
        phase.as_str_name()
    ))?;
    if phase != Phase::Succeeded {
        for line in error_lines(run) {
            screen.say(&line)?;
        }
    }
    show(client, screen, errand.view, run).await?;
    Ok(errand.goal.exit(phase))
}

/// Follows the operation to its end, with a box before and two behind.
pub async fn accompany(
    client: &Client,
    screen: &mut Screen,
    errand: Errand,
    timeout: std::time::Duration,
) -> Result<Exit, Failure> {
    let Errand { run, view, goal, origin, before } = errand;
    let long_over = matches!(origin, Origin::Watched) && is_over(run.phase());
    let during = match fetch_of(client, &run).await {
        // The operation is accepted; a server that is away now is waited for below.
        Err(failure) if failure.exit == Exit::Unreachable => {
            Some(before.clone().unwrap_or_default())
        }
        fetched => fetched?,
    };
    let before = before.or_else(|| during.clone());
    let state = before.as_ref().zip(during.as_ref());
    screen.say(&opening(&run, state.map(|(was, is)| (phase_of(was), effective_name(is)))))?;
    let (progress, log_offset) = match origin {
        Origin::Acted { told, log_offset } => (told, log_offset),
        Origin::Submitted | Origin::Watched => (Progress::default(), 0),
    };
    let start = Start { run_id: run.run_id, progress, log_offset };
    let run = follow(client, screen, start, timeout).await?;
    let paint = screen.paint();
    screen.say(&closing(&run, &Clock::system(), paint))?;
    // The run has ended and was told; a server that dies now takes nothing away from that.
    let passed = before.as_ref().zip(during.as_ref()).filter(|_| !long_over);
    if let Some((before, during)) = passed
        && let Ok(Some(after)) = fetch_of(client, &run).await
    {
        screen.say(&aftermath(&Passage { before, during, after: &after }))?;
    }
    screen.say(&format!("Operation: {} ({})", one_line(&run.run_id), path(&run)))?;
    show(client, screen, view, &run).await?;
    Ok(goal.exit(run.phase()))
}

/// The phases that the run went through, by its own timestamps: a fast one is never seen running.
fn path(run: &Run) -> String {
    let mut phases = vec![Phase::Pending];
    if run.started_at.is_some() {
        phases.push(Phase::Running);
    }
    phases.push(run.phase());
    phases.dedup();
    let names: Vec<&str> = phases.iter().map(Phase::as_str_name).collect();
    names.join(" → ")
}

/// The record itself, for programs.
async fn show(client: &Client, screen: &mut Screen, view: View, run: &Run) -> Result<(), Failure> {
    if screen.is_human() {
        return Ok(());
    }
    match view {
        View::Run => screen.one(run, |run| describe(run, &Clock::system())),
        View::Operation => {
            let request = GetOperationRequest { operation_id: run.run_id.clone() };
            let operation = client.call(client.operations().get_operation(request)).await?;
            screen.one(&operation, |operation| operation.operation_id.clone())
        }
    }
}

pub async fn list(client: &Client, screen: &mut Screen, args: &ListArgs) -> Result<Exit, Failure> {
    let operations = pages(args.limit, async |page_size, page_token| {
        let request = ListOperationsRequest { filter: args.filter.clone(), page_size, page_token };
        let answer = client.call(client.operations().list_operations(request)).await?;
        Ok((answer.operations, answer.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    screen.many(
        &operations,
        |operations, wide| table(operations, wide, &clock),
        "no operations match",
    )?;
    Ok(Exit::Done)
}

fn table(operations: &[Operation], wide: bool, clock: &Clock) -> Table {
    let names = ["OPERATION_ID", "MACHINE_ID", "TYPE", "PHASE", "STEP", "CREATED", "DURATION"];
    let more = ["REQUEST_ID", "INITIATOR", "ERROR"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for operation in operations {
        let (begun, ended) = (operation.started_at.as_ref(), operation.finished_at.as_ref());
        let (tone, _) = verdict(Phase::try_from(operation.phase).unwrap_or_default());
        let mut row: Vec<Cell> = vec![
            (&operation.operation_id).into(),
            target_name(&operation.machine_id, &operation.target_id).into(),
            type_name(operation).into(),
            Cell::toned(phase_name(operation), tone),
            (&operation.current_step).into(),
            clock.ago(operation.created_at.as_ref()).into(),
            clock.lasted(begun, ended).into(),
        ];
        if wide {
            let error = operation.error.as_ref().map_or("", |error| error.message.as_str());
            row.extend([
                (&operation.request_id).into(),
                (&operation.initiator).into(),
                error.into(),
            ]);
        }
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Paint;
    use proto::Timestamp;

    #[test]
    fn only_the_wanted_end_is_success() {
        use Phase::{Canceled, Failed, Succeeded};
        for (goal, phase, code) in [
            (Goal::Succeed, Succeeded, 0),
            (Goal::Succeed, Failed, 1),
            (Goal::Succeed, Canceled, 1),
            (Goal::Cancel, Canceled, 0),
            (Goal::Cancel, Succeeded, 1),
        ] {
            assert_eq!(goal.exit(phase).code(), code, "{goal:?} {phase:?}");
        }
    }

    #[test]
    fn the_path_names_each_phase_once() {
        let mut run = Run { phase: Phase::Succeeded.into(), ..Default::default() };
        assert_eq!(path(&run), "PENDING → SUCCEEDED");
        run.started_at = Some(Timestamp::default());
        assert_eq!(path(&run), "PENDING → RUNNING → SUCCEEDED");
    }

    #[test]
    fn operations_as_a_table() {
        let operation = Operation {
            operation_id: "op-1".into(),
            machine_id: "machine-1".into(),
            r#type: OperationType::Reimage.into(),
            phase: operation::Phase::Running.into(),
            current_step: "repave".into(),
            created_at: Some(Timestamp { seconds: 100, nanos: 0 }),
            started_at: Some(Timestamp { seconds: 110, nanos: 0 }),
            ..Default::default()
        };
        let text = table(&[operation], false, &Clock::fixed(200)).render(Paint { colour: false });
        assert_eq!(
            text,
            "OPERATION_ID  MACHINE_ID  TYPE     PHASE    STEP    CREATED     DURATION\n\
             op-1          machine-1   REIMAGE  RUNNING  repave  1m 40s ago  1m 30s\n"
        );
    }
}
