//! Rollouts: the plan of one over the whole fleet, and its creation.

use crate::client::BenchClient;
use crate::fleet::{Channel, Fleet, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, MACHINES, Outcome, Store};
use proto::v1;
use proto::v1::rollout_service_client::RolloutServiceClient;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The clients that bring the fleet into service.
const CLIENTS: usize = 32;
const PLANS: usize = 5;

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let fleet = Fleet::start(bench, Setup::new(store).machines(MACHINES)).await?;
    bring_into_service(&fleet).await?;
    let mut rollouts = RolloutServiceClient::new(fleet.channel().await?);
    let mut plans = Vec::with_capacity(PLANS);
    for _ in 0..PLANS {
        plans.push(create(&mut rollouts, true).await?);
    }
    plans.sort_unstable();
    let created = create(&mut rollouts, false).await?;
    for (name, took) in [
        ("rollout, the plan for 20,000 machines, median", plans[PLANS / 2]),
        ("rollout, its creation on 20,000 machines", created),
    ] {
        let row = Row::new(name, took.as_secs_f64(), Unit::Seconds);
        report.add(row.store(store).target(Target::AtMost(1.0)).note("5 % at a time per rack"));
    }
    Ok(())
}

/// Takes every machine through maintenance: a machine that was never in service is no target.
async fn bring_into_service(fleet: &Fleet) -> Outcome<()> {
    let crew = fleet.client_pool(CLIENTS).await?;
    let mut work = JoinSet::new();
    for (first, call) in crew.clients.iter().cloned().enumerate() {
        work.spawn(serve_each(call, first));
    }
    while let Some(done) = work.join_next().await {
        done??;
    }
    Ok(())
}

async fn serve_each(mut call: BenchClient, first: usize) -> Outcome<()> {
    for index in (first..MACHINES).step_by(CLIENTS) {
        for kind in ["ENTER_MAINTENANCE", "EXIT_MAINTENANCE"] {
            call.run_to_success(&machine(index), kind, kind).await?;
        }
    }
    Ok(())
}

/// Creates a rollout that begins tomorrow, or shows its plan. Checks that every machine is in it.
async fn create(client: &mut RolloutServiceClient<Channel>, dry_run: bool) -> Outcome<Duration> {
    let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86_400);
    let spec = v1::RolloutSpec {
        r#type: "REBOOT".into(),
        filter: "provider=sim".into(),
        start_at: Some(tomorrow.into()),
        ..Default::default()
    };
    let pace = v1::RolloutPace {
        batch: "10%".into(),
        max_unavailable: "5%".into(),
        per: "labels.rack".into(),
        ..Default::default()
    };
    let rollout = v1::Rollout { spec: Some(spec), pace: Some(pace), ..Default::default() };
    let request = v1::CreateRolloutRequest { rollout: Some(rollout), dry_run, ..Default::default() };
    let begun = Instant::now();
    let plan = client.create_rollout(request).await?.into_inner().plan.unwrap_or_default();
    let took = begun.elapsed();
    let targets: usize = plan.waves.iter().map(|wave| wave.target_ids.len()).sum();
    match targets {
        MACHINES => Ok(took),
        other => Err(format!("{other} machines are in the plan").into()),
    }
}
