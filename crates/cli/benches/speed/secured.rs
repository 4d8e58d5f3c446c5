//! Measures the cost of TLS and tokens on kept connections.
//!
//! GetMachine and StartRun with TLS and a token are compared with the same calls over plain HTTP
//! with a token: no server without authentication exists. What the token costs is the difference
//! between two calls that do nothing: a health check, which needs no token, and GetCaller, which
//! is authenticated, authorized and returns the caller from memory. The servers are measured in
//! turns, and each has the better of its rounds: what else the host does is noise for both.

use crate::fleet::{Channel, Fleet, Hardware, RunSlots, Setup, machine};
use crate::table::{Report, Row, Target, Unit};
use crate::tally::{Tally, WARM_UP, press, press_each};
use crate::{Bench, Outcome, Store, Wrong};
use proto::v1;
use proto::v1::access_service_client::AccessServiceClient;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const CLIENTS: usize = 32;
const ROUNDS: usize = 2;
/// At most 15 % fewer.
const LEAST_SHARE: f64 = 0.85;
/// More runs than can be accepted in a second.
const STARTS_PER_SECOND: f64 = 15_000.0;

/// One of the two servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Http,
    Tls,
}

impl Transport {
    const ALL: [Self; 2] = [Self::Http, Self::Tls];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP and a token",
            Self::Tls => "TLS and a token",
        }
    }
}

/// The best rates of both servers, in the order of `Transport::ALL`.
type Rates = [f64; 2];

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let (mut gets, mut starts) = (Rates::default(), Rates::default());
    for _ in 0..ROUNDS {
        for (at, transport) in Transport::ALL.into_iter().enumerate() {
            let (get, start) = rates(bench, store, transport, report).await?;
            (gets[at], starts[at]) = (gets[at].max(get), starts[at].max(start));
        }
    }
    for (call, [http, tls]) in [("GetMachine", gets), ("StartRun accepted", starts)] {
        for (transport, rate) in [(Transport::Http, http), (Transport::Tls, tls)] {
            let name = format!("{call}, {}", transport.as_str());
            let row = Row::new(name, rate, Unit::PerSecond).store(store).clients(CLIENTS);
            report.add(match transport {
                Transport::Http => row,
                Transport::Tls => {
                    row.limit(http, "HTTP and a token").target(Target::AtLeast(http * LEAST_SHARE))
                }
            });
        }
    }
    tokens(bench, store, report).await
}

/// GetMachine and StartRun per second, on a new server.
async fn rates(
    bench: &Bench,
    store: Store,
    transport: Transport,
    report: &mut Report,
) -> Outcome<(f64, f64)> {
    let machines = (STARTS_PER_SECOND * (bench.span + WARM_UP).as_secs_f64()) as usize;
    let setup = Setup::new(store).machines(machines).hardware(Hardware::Holding);
    let setup = setup.run_slots(RunSlots::One).tls(transport == Transport::Tls);
    let fleet = Fleet::start(bench, setup).await?;
    let crew = fleet.client_pool(CLIENTS).await?;
    let get = press(&crew.clients, bench.span, move |mut call, _| async move {
        call.get(&machine(rand::random_range(0..machines))).await
    });
    let get = get.await;
    report.errors_of("GetMachine", &get);
    let next = Arc::new(AtomicUsize::new(0));
    let start = press(&crew.clients, bench.span, move |mut call, _| {
        let index = next.fetch_add(1, Ordering::Relaxed);
        async move { call.start(&machine(index), "ENTER_MAINTENANCE", "start").await.map(drop) }
    });
    let start = start.await;
    report.errors_of("StartRun", &start);
    Ok((get.per_second(), start.per_second()))
}

/// A call that needs no token beside one that does.
async fn tokens(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    let fleet = Fleet::start(bench, Setup::new(store)).await?;
    let mut channels = Vec::new();
    for _ in 0..CLIENTS {
        channels.push(fleet.channel().await?);
    }
    let (mut open, mut known): (f64, f64) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let tally = checks(bench, &channels).await;
        report.errors_of("health check", &tally);
        open = open.max(tally.per_second());
        let tally = callers(bench, &channels).await;
        report.errors_of("GetCaller", &tally);
        known = known.max(tally.per_second());
    }
    let row = Row::new("health check, HTTP without a token", open, Unit::PerSecond);
    report.add(row.store(store).clients(CLIENTS));
    let row = Row::new("GetCaller, HTTP and a token", known, Unit::PerSecond).store(store);
    report.add(row.clients(CLIENTS).limit(open, "without a token"));
    Ok(())
}

async fn checks(bench: &Bench, channels: &[Channel]) -> Tally {
    let clients = channels.iter().cloned().map(|channel| {
        let client = HealthClient::new(channel);
        move |_| {
            let mut client = client.clone();
            async move {
                client.check(HealthCheckRequest::default()).await.map_err(Wrong::from)?;
                Ok(())
            }
        }
    });
    press_each(clients, bench.span).await
}

async fn callers(bench: &Bench, channels: &[Channel]) -> Tally {
    let clients = channels.iter().cloned().map(|channel| {
        let client = AccessServiceClient::new(channel);
        move |_| {
            let mut client = client.clone();
            async move {
                let caller = client.get_caller(v1::GetCallerRequest::default()).await;
                caller.map_err(Wrong::from)?;
                Ok(())
            }
        }
    });
    press_each(clients, bench.span).await
}
