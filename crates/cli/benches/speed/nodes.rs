//! Nodes: 2,000 are onboarded at once, sixteen stages each, on a simulated MAAS that takes no time.
//! Then a fleet of 10,000 is reconciled twice: without any change, which is the usual case, and
//! with changes on a tenth of the nodes.

use crate::client::ClientPool;
use crate::fleet::{Channel, Fleet, Setup};
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, Outcome, Store, Wrong};
use proto::v1;
use proto::v1::machine_service_client::MachineServiceClient;
use proto::v1::node_service_client::NodeServiceClient;
use proto::v1::run_service_client::RunServiceClient;
use proto::v1::site_service_client::SiteServiceClient;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const AT_ONCE: usize = 2_000;
const FLEET: usize = 10_000;
/// One commit for the acceptance and one for each of sixteen stages; the first stage has one more
/// for its intent.
const COMMITS: f64 = 18.0;
/// The number of concurrent requests.
const CLIENTS: usize = 32;
const PASSES: usize = 5;
const PAGE: i32 = 1_000;
/// The number of machines that are switched off without the reconciler's knowledge.
const CHANGED: usize = FLEET / 10;
/// A site is polled every 30 seconds: a pass that takes a tenth of that leaves the rest for other
/// work.
const PASS_SECONDS: f64 = 3.0;
const SITE: &str = "site-bench";
const TIMEOUT: Duration = Duration::from_secs(900);

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let fleet = Fleet::start(bench, Setup::new(store)).await?;
    let channel = fleet.channel().await?;
    let crew = fleet.client_pool(CLIENTS).await?;
    make_site(channel.clone()).await?;
    let machines: Vec<String> = (0..FLEET).map(|n| format!("gpu-{n:05}")).collect();
    shared(&machines, |part| register(channel.clone(), part)).await?;

    let taken = onboarded(&crew, &channel, &machines[..AT_ONCE]).await?;
    report.add(
        Row::new(
            "2,000 nodes onboarded at once",
            AT_ONCE as f64 / taken.as_secs_f64(),
            Unit::PerSecond,
        )
        .store(store)
        .limit(bench.limits.commits(store, CLIENTS) / COMMITS, "raw commits ÷ 18")
        .note(format!("all in {:.1} s, 16 stages each", taken.as_secs_f64())),
    );
    onboarded(&crew, &channel, &machines[AT_ONCE..]).await?;
    // The first pass stores what MAAS reports; later passes find no change.
    check_site(&channel).await?;
    let mut passes = Vec::new();
    for _ in 0..PASSES {
        passes.push(check_site(&channel).await?);
    }
    passes.sort_by(f64::total_cmp);
    let quiet = passes[PASSES / 2];
    report.add(
        Row::new("a pass over 10,000 nodes", quiet, Unit::Seconds)
            .store(store)
            .limit(listed(&channel).await?, "ListNodes, all in 10 pages")
            .target(Target::AtMost(PASS_SECONDS))
            .note(format!("median of {PASSES}; the simulator's own looks are in it")),
    );
    switched_off(&crew, &channel, &machines[..CHANGED]).await?;
    let taken = check_site(&channel).await?;
    report.add(
        Row::new("a pass with news of 1,000 of 10,000", CHANGED as f64 / taken, Unit::PerSecond)
            .store(store)
            .limit(bench.limits.commits(store, 1), "raw commits of one client")
            .note(format!("in {taken:.2} s, {quiet:.2} s of it for the rest")),
    );
    match fleet.complaints() {
        message if message.is_empty() => Ok(()),
        message => Err(message.into()),
    }
}

/// The duration of one site check in seconds, which is a whole pass except its metrics.
async fn check_site(channel: &Channel) -> Outcome<f64> {
    let begun = Instant::now();
    let request = v1::CheckSiteRequest { site_id: SITE.into() };
    SiteServiceClient::new(channel.clone()).check_site(request).await?;
    Ok(begun.elapsed().as_secs_f64())
}

/// The time to list all nodes page by page, in seconds.
async fn listed(channel: &Channel) -> Outcome<f64> {
    let mut client = NodeServiceClient::new(channel.clone());
    let (mut observed, mut page_token, begun) = (0, String::new(), Instant::now());
    loop {
        let requested = v1::ListNodesRequest { page_size: PAGE, page_token, ..Default::default() };
        let page = client.list_nodes(requested).await?.into_inner();
        observed += page.nodes.len();
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match observed {
        FLEET => Ok(begun.elapsed().as_secs_f64()),
        other => Err(format!("{other} nodes were listed").into()),
    }
}

/// Power can only be switched off in maintenance.
async fn switched_off(crew: &ClientPool, channel: &Channel, machines: &[String]) -> Outcome<()> {
    for (run_type, plan) in [("ENTER_MAINTENANCE", ""), ("POWER", "plan-power-off-v1")] {
        let start = |part| start_all(channel.clone(), part, run_type, plan);
        all_succeed(crew, shared(machines, start).await?).await?;
    }
    Ok(())
}

async fn start_all(
    channel: Channel,
    machines: Vec<String>,
    run_type: &str,
    plan: &str,
) -> Outcome<Vec<String>> {
    let mut client = RunServiceClient::new(channel);
    let mut runs = Vec::new();
    for id in machines {
        let request = v1::StartRunRequest {
            request_id: format!("{run_type}-{id}"),
            machine_id: id,
            r#type: run_type.into(),
            plan_id: plan.into(),
            ..Default::default()
        };
        runs.push(client.start_run(request).await?.into_inner().run_id);
    }
    Ok(runs)
}

async fn make_site(channel: Channel) -> Outcome<()> {
    let spec = v1::SiteSpec { provider: "sim".into(), ..Default::default() };
    let site = v1::Site { site_id: SITE.into(), spec: Some(spec), ..Default::default() };
    let request = v1::CreateSiteRequest { site: Some(site), ..Default::default() };
    SiteServiceClient::new(channel).create_site(request).await?;
    Ok(())
}

/// Distributes the machines over several concurrent clients.
async fn shared<T, F>(machines: &[String], work: impl Fn(Vec<String>) -> F) -> Outcome<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Outcome<Vec<T>>> + Send + 'static,
{
    let mut works = JoinSet::new();
    for part in machines.chunks(machines.len().div_ceil(CLIENTS)) {
        works.spawn(work(part.to_vec()));
    }
    let mut done = Vec::new();
    while let Some(joined) = works.join_next().await {
        done.extend(joined??);
    }
    Ok(done)
}

async fn register(channel: Channel, machines: Vec<String>) -> Outcome<Vec<()>> {
    let mut client = MachineServiceClient::new(channel);
    for id in machines {
        let spec = v1::MachineSpec { provider: "sim".into(), ..Default::default() };
        let machine = v1::Machine { machine_id: id, spec: Some(spec), ..Default::default() };
        client
            .register_machine(v1::RegisterMachineRequest {
                machine: Some(machine),
                ..Default::default()
            })
            .await?;
    }
    Ok(Vec::new())
}

/// The time from the first request until all nodes are active.
async fn onboarded(crew: &ClientPool, channel: &Channel, machines: &[String]) -> Outcome<Duration> {
    let begun = Instant::now();
    let runs = shared(machines, |part| onboard(channel.clone(), part)).await?;
    all_succeed(crew, runs).await?;
    Ok(begun.elapsed())
}

async fn all_succeed(crew: &ClientPool, runs: Vec<String>) -> Outcome<()> {
    for id in runs {
        let ended = tokio::time::timeout(TIMEOUT, crew.first().ended(&id)).await;
        let run = ended.map_err(|_| Wrong::from(format!("{id} did not end")))??;
        if !run.succeeded() {
            return Err(format!("{id} did not succeed").into());
        }
    }
    Ok(())
}

async fn onboard(channel: Channel, machines: Vec<String>) -> Outcome<Vec<String>> {
    let mut client = NodeServiceClient::new(channel);
    let mut runs = Vec::new();
    for id in machines {
        let request = v1::OnboardNodeRequest {
            request_id: format!("bench-{id}"),
            machine_id: id,
            site_id: SITE.into(),
            ..Default::default()
        };
        let run = client.onboard_node(request).await?.into_inner().run;
        runs.push(run.ok_or("no run was started")?.run_id);
    }
    Ok(runs)
}
