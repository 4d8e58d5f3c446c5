//! The cost of polling real BMCs: the real server with 20,000 machines, each with its own BMC that
//! answers at once, probed once a minute (the default), over HTTP and over TLS. For comparison, a
//! bare loop sends the same request at the same rate.

use crate::fleet::{Fleet, Probes, Setup};
use crate::peer::{Peer, SYSTEM, Scheme};
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, MACHINES, Outcome, Store, process};
use proto::v1;
use proto::v1::credential_secret::Kind;
use proto::v1::credential_service_client::CredentialServiceClient;
use proto::v1::machine_service_client::MachineServiceClient;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

const ROUND: Duration = Duration::from_secs(60);
/// The kernel counts CPU time in hundredths of a second; over this span that is less than a
/// thousandth of a core.
const SPAN: Duration = Duration::from_secs(30);
const BARE_SPAN: Duration = Duration::from_secs(10);
const CLIENTS: usize = 32;
/// New machines are probed when they are registered, then once per round.
const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The second round has started when this many machines are probed again.
const UNDER_WAY: usize = 500;
/// The limit: half a core, in percent of one core.
const MOST_PERCENT: f64 = 50.0;

/// The database has little influence here, so only SQLite is measured.
pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    if store == Store::Postgres {
        return Ok(());
    }
    for scheme in [Scheme::Http, Scheme::Https] {
        let peer = Peer::start(scheme, bench.root.path())?;
        let bare = bare_loop(&peer).await?;
        let fleet = Fleet::start(bench, Setup::new(store).probes(Probes::Default)).await?;
        register(&fleet, &peer).await?;
        until(&fleet, MACHINES + UNDER_WAY).await?;
        let (percent, probes) = cost(&fleet).await?;
        check(&fleet).await?;
        let (resident, name) = (process::resident_mb(fleet.pid())?, scheme.as_str());
        let figure = format!("20,000 BMCs every 60 s, {name}");
        let row = Row::new(figure, percent, Unit::Percent).store(store);
        report
            .add(row.limit(bare, "bare calls").target(Target::AtMost(MOST_PERCENT)).note(format!(
            "of one core, {probes:.0} looks/s, {:.1} times a bare loop; {resident:.0} MB resident",
            percent / bare
        )));
    }
    Ok(())
}

/// The CPU cost of the same number of calls in a program that does nothing else, in percent of a
/// core.
async fn bare_loop(peer: &Peer) -> Outcome<f64> {
    let pid = std::process::id();
    let every = ROUND / u32::try_from(MACHINES)?;
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let caller = peer.caller()?;
    let (begun, before) = (Instant::now(), process::cpu_seconds(pid)?);
    let mut calls = JoinSet::new();
    for index in 0.. {
        if begun.elapsed() >= BARE_SPAN {
            break;
        }
        tick.tick().await;
        let (caller, address) = (caller.clone(), peer.address(index % MACHINES));
        calls.spawn(async move { caller.get(&address, SYSTEM).await });
        while let Some(done) = calls.try_join_next() {
            done??;
        }
    }
    while let Some(done) = calls.join_next().await {
        done??;
    }
    let span = begun.elapsed().as_secs_f64();
    Ok((process::cpu_seconds(pid)? - before) / span * 100.0)
}

async fn register(fleet: &Fleet, peer: &Peer) -> Outcome<()> {
    let channel = fleet.channel().await?;
    let password = v1::Password { user: "root".into(), password: "of-the-bench".into() };
    let secret = v1::CredentialSecret { kind: Some(Kind::Password(password)) };
    let request = v1::CreateCredentialRequest {
        name: "bmc".into(),
        secret: Some(secret),
        peers: vec!["127.0.0.0/8".into()],
        allow_plain_http: true,
        ..Default::default()
    };
    CredentialServiceClient::new(channel.clone()).create_credential(request).await?;
    let mut clients = JoinSet::new();
    for call in 0..CLIENTS {
        let mut machines = MachineServiceClient::new(channel.clone());
        let specs: Vec<(usize, String)> =
            (call..MACHINES).step_by(CLIENTS).map(|index| (index, peer.url(index))).collect();
        clients.spawn(async move {
            for (index, bmc_endpoint) in specs {
                let spec = v1::MachineSpec {
                    bmc_endpoint,
                    provider: "datacenter".into(),
                    bmc_credential: "bmc".into(),
                    ..Default::default()
                };
                let machine = v1::Machine {
                    machine_id: format!("m-{index:05}"),
                    spec: Some(spec),
                    ..Default::default()
                };
                let request =
                    v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
                machines.register_machine(request).await?;
            }
            Ok::<(), tonic::Status>(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

/// Waits until this many probes were made.
async fn until(fleet: &Fleet, probes: usize) -> Outcome<()> {
    let begun = Instant::now();
    while fleet.metric("farrier_probes_total")? < probes as f64 {
        if begun.elapsed() > TIMEOUT {
            return Err("the BMCs were not looked at in time".into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Percent of a core, and probes per second.
async fn cost(fleet: &Fleet) -> Outcome<(f64, f64)> {
    let probes = fleet.metric("farrier_probes_total")?;
    let (begun, before) = (Instant::now(), process::cpu_seconds(fleet.pid())?);
    tokio::time::sleep(SPAN).await;
    let used = process::cpu_seconds(fleet.pid())? - before;
    let span = begun.elapsed().as_secs_f64();
    Ok((used / span * 100.0, (fleet.metric("farrier_probes_total")? - probes) / span))
}

/// Fails if a BMC did not answer, because the measurement would then be invalid.
async fn check(fleet: &Fleet) -> Outcome<()> {
    let mut machines = MachineServiceClient::new(fleet.channel().await?);
    let request = v1::ListMachinesRequest {
        filter: "condition.BMCReachable=false".into(),
        page_size: 1,
        ..Default::default()
    };
    let lost = machines.list_machines(request).await?.into_inner().machines;
    match lost.first() {
        None => Ok(()),
        Some(machine) => Err(format!("a BMC did not answer: {machine:?}").into()),
    }
}
