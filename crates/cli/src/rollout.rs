//! Rollouts: one operation on many machines, in waves.

mod show;
mod watch;

use crate::args::{
    RolloutArg, RolloutCommand, RolloutCreateArgs, RolloutListArgs, RolloutPaceArgs,
    RolloutTargetsArgs, RolloutUpdateArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::filter::empty_list_note;
use crate::import::file::{FileSyntax, parse_as, read_file};
use crate::operation::choose_request_id;
use crate::output::Screen;
use crate::text::one_line;
use crate::time::{Clock, to_message};
use crate::update::Updated;
use model::plan::IMAGE_REF;
use proto::FieldMask;
use proto::field_mask::differences;
use proto::v1::{
    AbortRolloutRequest, CreateRolloutRequest, GetRolloutRequest, ListRolloutTargetsRequest,
    ListRolloutsRequest, PauseRolloutRequest, PromoteRolloutRequest, ResumeRolloutRequest,
    RetryRolloutTargetsRequest, Rollout, RolloutGate, RolloutPace, RolloutTargetState,
    SkipRolloutTargetRequest, UpdateRolloutRequest,
};
use proto::words;
use std::path::Path;
use std::time::Duration;

/// The fields that an update may change.
const WRITABLE: &[&str] = &["pace"];

pub async fn run(client: &Client, screen: &mut Screen, command: RolloutCommand) -> Result<Exit> {
    let dry_run = client.is_dry_run();
    let (changed, what) = match command {
        RolloutCommand::Create(args) => {
            create(client, screen, *args).await?;
            return Ok(Exit::Success);
        }
        RolloutCommand::List(args) => {
            list(client, screen, &args).await?;
            return Ok(Exit::Success);
        }
        RolloutCommand::Get(RolloutArg { rollout_id }) => {
            let rollout = fetch(client, rollout_id).await?;
            screen.print_record(&rollout, |one| show::describe(one, &Clock::system()))?;
            return Ok(Exit::Success);
        }
        RolloutCommand::Targets(args) => {
            list_targets(client, screen, &args).await?;
            return Ok(Exit::Success);
        }
        RolloutCommand::Watch(args) => return watch::follow(client, screen, args).await,
        RolloutCommand::Update(args) => {
            let updated = update(client, args).await?;
            screen.print_record(&updated.object, |one| {
                format!("{}\n", updated.describe(client, &one.rollout_id))
            })?;
            return Ok(Exit::Success);
        }
        RolloutCommand::Pause(args) => {
            let (rollout_id, reason) = (args.rollout_id, args.reason);
            let request = PauseRolloutRequest { rollout_id, reason, dry_run };
            (client.call(client.rollouts().pause_rollout(request)).await?, "paused")
        }
        RolloutCommand::Resume(RolloutArg { rollout_id }) => {
            let request = ResumeRolloutRequest { rollout_id, dry_run };
            (client.call(client.rollouts().resume_rollout(request)).await?, "resumed")
        }
        RolloutCommand::Abort(args) => {
            let request = AbortRolloutRequest {
                rollout_id: args.rollout_id,
                cancel_running: args.cancel_running,
                reason: args.reason,
                dry_run,
            };
            (client.call(client.rollouts().abort_rollout(request)).await?, "aborted")
        }
        RolloutCommand::Promote(RolloutArg { rollout_id }) => {
            let request = PromoteRolloutRequest { rollout_id, dry_run };
            (client.call(client.rollouts().promote_rollout(request)).await?, "promoted")
        }
        RolloutCommand::RetryFailed(RolloutArg { rollout_id }) => {
            let request = RetryRolloutTargetsRequest { rollout_id, dry_run };
            (client.call(client.rollouts().retry_rollout_targets(request)).await?, "retried")
        }
        RolloutCommand::Skip(args) => {
            let request = SkipRolloutTargetRequest {
                rollout_id: args.rollout_id,
                machine_id: args.machine_id,
                reason: args.reason,
                dry_run,
            };
            (client.call(client.rollouts().skip_rollout_target(request)).await?, "changed")
        }
    };
    screen.print_record(&changed, |one| {
        let (id, outcome) = (one_line(&one.rollout_id), client.outcome(what));
        format!("{id} {outcome}: {}\n", show::progress(one))
    })?;
    Ok(Exit::Success)
}

async fn fetch(client: &Client, rollout_id: String) -> Result<Rollout> {
    client.call(client.rollouts().get_rollout(GetRolloutRequest { rollout_id })).await
}

async fn create(client: &Client, screen: &mut Screen, args: RolloutCreateArgs) -> Result<()> {
    let request_id = match client.is_dry_run() {
        true => args.request_id.clone().unwrap_or_default(),
        false => choose_request_id(screen, args.request_id.as_ref())?,
    };
    let mut rollout = match &args.file {
        Some(file) => read_rollout(file)?,
        None => Rollout::default(),
    };
    apply_create(&mut rollout, args);
    let dry_run = client.is_dry_run();
    let request = CreateRolloutRequest { rollout: Some(rollout), request_id, dry_run };
    let created = client.call(client.rollouts().create_rollout(request)).await?;
    let (clock, wide) = (Clock::system(), screen.is_wide());
    screen.print_record(&created, |created| show::created(created, dry_run, wide, &clock))
}

fn read_rollout(file: &Path) -> Result<Rollout> {
    let syntax = FileSyntax::from_path(file).filter(|syntax| *syntax != FileSyntax::Csv);
    let Some(syntax) = syntax else {
        let message = "a rollout is a .yaml or .json file; see `farrier rollout create --help`";
        return Err(Failure::refused(format!("{}: {message}", file.display())));
    };
    parse_as(file, &read_file(file)?, syntax)
}

/// Overwrites what the arguments say.
fn apply_create(rollout: &mut Rollout, args: RolloutCreateArgs) {
    let spec = rollout.spec.get_or_insert_default();
    let texts = [
        (&mut spec.r#type, args.operation.map(|word| word.to_uppercase().replace('-', "_"))),
        (&mut spec.plan_id, args.plan),
        (&mut spec.filter, args.filter),
        (&mut spec.order_label, args.order),
        (&mut spec.on_conflict, args.on_conflict),
    ];
    for (field, value) in texts {
        if let Some(value) = value {
            *field = value;
        }
    }
    spec.params.extend(args.params);
    spec.params.extend(args.image.map(|image| (IMAGE_REF.to_string(), image)));
    if let Some(gate) = args.gate {
        spec.gate = Some(RolloutGate {
            condition: gate.condition,
            status: gate.status,
            hold_seconds: whole_seconds(gate.hold),
        });
    }
    if let Some(at) = args.start_at {
        spec.start_at = Some(to_message(at));
    }
    let pace = rollout.pace.get_or_insert_default();
    pace.canary = args.canary.unwrap_or(pace.canary);
    pace.wave_approval |= args.wave_approval;
    apply_pace(pace, args.pace);
}

fn apply_pace(pace: &mut RolloutPace, args: RolloutPaceArgs) {
    pace.batch = args.batch.unwrap_or_else(|| pace.batch.clone());
    pace.max_in_flight = args.max_in_flight.unwrap_or(pace.max_in_flight);
    pace.stop_after = args.stop_after.unwrap_or_else(|| pace.stop_after.clone());
    pace.soak_seconds = args.soak.map_or(pace.soak_seconds, whole_seconds);
    pace.window = args.window.unwrap_or_else(|| pace.window.clone());
    let deadline = args.target_deadline;
    pace.target_deadline_seconds = deadline.map_or(pace.target_deadline_seconds, whole_seconds);
}

fn whole_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// Sends only what the arguments change.
async fn update(client: &Client, args: RolloutUpdateArgs) -> Result<Updated<Rollout>> {
    let before = fetch(client, args.rollout_id).await?;
    let mut rollout = before.clone();
    let pace = rollout.pace.get_or_insert_default();
    apply_pace(pace, args.pace);
    pace.wave_approval = args.wave_approval.unwrap_or(pace.wave_approval);
    let differences = differences(&before, &rollout, WRITABLE);
    if rollout.pace == before.pace && args.version.expected_version.is_none() {
        return Ok(Updated { object: before, differences });
    }
    let request = UpdateRolloutRequest {
        rollout: Some(rollout),
        expected_version: args.version.or_any(),
        update_mask: Some(FieldMask { paths: vec!["pace".into()] }),
        dry_run: client.is_dry_run(),
    };
    let object = client.call(client.rollouts().update_rollout(request)).await?;
    Ok(Updated { object, differences })
}

async fn list(client: &Client, screen: &mut Screen, args: &RolloutListArgs) -> Result<()> {
    let rollouts = fetch_pages(args.list.limit, async |page_size, page_token| {
        let (filter, order_by) = (args.list.filter.clone(), args.sort.order_by.clone());
        let request = ListRolloutsRequest { page_size, page_token, filter, order_by };
        let page = client.call(client.rollouts().list_rollouts(request)).await?;
        Ok((page.rollouts, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    let none = "no rollouts; create one with `farrier rollout create OPERATION --filter EXPR`";
    let none = empty_list_note(&args.list.filter, none);
    let clock = Clock::system();
    screen.print_list(&rollouts, |rollouts, wide| show::table(rollouts, wide, &clock), none)
}

async fn list_targets(
    client: &Client,
    screen: &mut Screen,
    args: &RolloutTargetsArgs,
) -> Result<()> {
    let state = args.state.as_deref().map(words::value::<RolloutTargetState>).unwrap_or_default();
    let targets = fetch_pages(args.limit, async |page_size, page_token| {
        let rollout_id = args.rollout_id.clone();
        let request = ListRolloutTargetsRequest { rollout_id, state, page_size, page_token };
        let page = client.call(client.rollouts().list_rollout_targets(request)).await?;
        Ok((page.targets, page.next_page_token))
    })
    .await?;
    let clock = Clock::system();
    let none = "no target is in this state";
    screen.print_list(&targets, |targets, wide| show::targets(targets, wide, &clock), none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::GateArg;

    fn args() -> RolloutCreateArgs {
        RolloutCreateArgs {
            operation: Some("net-reconfig".into()),
            file: None,
            filter: Some("labels.role=gpu".into()),
            image: None,
            plan: None,
            params: vec![("network".into(), "{}".into())],
            canary: Some(2),
            pace: RolloutPaceArgs {
                batch: Some("5%".into()),
                soak: Some(Duration::from_secs(600)),
                ..RolloutPaceArgs::default()
            },
            wave_approval: true,
            gate: Some(GateArg {
                condition: "InCustomerCluster".into(),
                status: true,
                hold: Duration::from_secs(300),
            }),
            start_at: model::time::Timestamp::parse("1970-01-01T00:00:05Z"),
            order: Some("zone".into()),
            on_conflict: Some("refuse".into()),
            request_id: None,
        }
    }

    #[test]
    fn arguments_overwrite_a_file() {
        let text = "spec:\n  type: REBOOT\n  filter: provider=sim\npace:\n  batch: '9'\n  stop_after: 3%\n";
        let mut rollout: Rollout = parse_as(Path::new("r.yaml"), text, FileSyntax::Yaml).unwrap();
        apply_create(&mut rollout, args());
        let (spec, pace) = (rollout.spec.unwrap(), rollout.pace.unwrap());
        assert_eq!(
            (spec.r#type.as_str(), spec.filter.as_str()),
            ("NET_RECONFIG", "labels.role=gpu")
        );
        assert_eq!((spec.order_label.as_str(), spec.on_conflict.as_str()), ("zone", "refuse"));
        assert_eq!(spec.start_at.unwrap().seconds, 5);
        assert_eq!(spec.gate.unwrap().hold_seconds, 300);
        assert_eq!((pace.batch.as_str(), pace.stop_after.as_str()), ("5%", "3%"));
        assert_eq!((pace.canary, pace.soak_seconds, pace.wave_approval), (2, 600, true));
    }

    #[test]
    fn a_file_needs_a_known_ending() {
        let refused = read_rollout(Path::new("rollout.txt")).unwrap_err();
        assert_eq!(refused.exit, Exit::Refused);
        assert!(refused.message.contains(".yaml or .json"), "{}", refused.message);
    }
}
