//! Structured logs and Prometheus metrics, for the operators of Farrier itself.

use crate::config::{Log, LogFormat};
use crate::listener::{EndReason, ListenerName};
use crate::summed_log::DeniedRequest;
use engine::Engine;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use model::health::{AlertClass, AlertCounts};
use model::lifecycle::SubjectKind;
use model::node::TaskKind;
use model::notify::{MAX_NOTIFIERS, NoticeOutcome};
use model::target::TargetKind;
use std::fmt::Display;
use std::io::IsTerminal;
use store::{Result, Tx};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Buckets for all durations in seconds: from a commit to a reimage.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 1800.0];

/// Starts logging to stderr. A second call in one process is ignored.
pub(crate) fn start_logging(log: &Log) -> std::result::Result<(), String> {
    let filtered = tracing_subscriber::registry().with(parse_filter(&log.level)?);
    // A log line that cannot be written, on a full disk for example, must not fail its writer.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false);
    let started = match log.format {
        LogFormat::Text => filtered.with(lines.with_target(false)).try_init(),
        LogFormat::Json => filtered.with(lines.json()).try_init(),
    };
    // Tests start several servers in one process; they share the logging of the first one.
    drop(started);
    Ok(())
}

/// Parses `log.level`: levels, and targets with or without one. Without a directive, only errors
/// are logged.
fn parse_filter(level: &str) -> std::result::Result<Targets, String> {
    let wrong = |why: &dyn Display| format!("log.level {level:?} is wrong: {why}");
    if level.contains(['[', ']', '{', '}']) {
        let why = "spans and fields cannot be filtered; write targets such as info,engine=debug";
        return Err(wrong(&why));
    }
    let directives: Vec<&str> = level.split(',').filter(|one| !one.is_empty()).collect();
    if directives.is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::ERROR));
    }
    directives.join(",").parse().map_err(|error| wrong(&error))
}

/// Installs the metrics recorder. None when this process has one already, which only happens in
/// tests.
pub(crate) fn start_metrics() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
        .ok()?;
    let handle = builder.install_recorder().ok()?;
    describe();
    Some(handle)
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("farrier_runs_started_total", "Runs accepted, by type.");
    describe_counter!("farrier_runs_finished_total", "Runs ended, by type and phase.");
    describe_counter!("farrier_probes_total", "Probes of machines.");
    describe_counter!("farrier_health_probes_total", "Probes of the components of machines.");
    describe_counter!(
        "farrier_turn_panics_total",
        "Turns of runs that panicked; the run is retried after a pause."
    );
    describe_counter!(
        "farrier_record_turn_failures_total",
        "Turns of records that failed and are retried, by kind."
    );
    describe_counter!("farrier_unreadable_records_total", "Claimed runs that cannot be read.");
    describe_counter!("farrier_requests_total", "Requests, by path and gRPC status.");
    describe_counter!(
        "farrier_retention_removed_total",
        "Rows deleted by retention, by kind of row."
    );
    // A counter that has not counted yet is exported as zero, not absent.
    for what in ["runs", "events", "logs"] {
        metrics::counter!("farrier_retention_removed_total", "what" => what).increment(0);
    }
    metrics::counter!("farrier_probes_total").increment(0);
    metrics::counter!("farrier_health_probes_total").increment(0);
    metrics::counter!("farrier_turn_panics_total").increment(0);
    metrics::counter!("farrier_unreadable_records_total").increment(0);
    describe_gauge!("farrier_runs_claimed", "Runs that this replica has claimed.");
    describe_gauge!("farrier_runs_active", "Runs that have not ended, by phase.");
    describe_gauge!("farrier_runs_overdue", "Active runs that wait longer than is normal.");
    describe_gauge!(
        "farrier_devices",
        "Racks, switches, power shelves, hosts, nodes and sites, by kind and state."
    );
    describe_gauge!("farrier_devices_overdue", "Devices that wait longer than is normal, by kind.");
    describe_counter!("farrier_device_probes_total", "Probes of switches and power shelves.");
    metrics::counter!("farrier_device_probes_total").increment(0);
    describe_gauge!("farrier_machines", "Machines in the inventory.");
    describe_gauge!("farrier_health_alerts", "Active alerts, by kind and by classification.");
    describe_gauge!(
        "farrier_health_alerts_suppressed",
        "Alerts that suppress external alerting, by kind."
    );
    describe_gauge!(
        "farrier_unreadable_rows",
        "Stored rows that this replica could not read, by kind; `farrier db check` names them."
    );
    describe_gauge!(
        "farrier_outdated",
        "1 if a newer farrier has migrated the database and this replica must not write."
    );
    describe_gauge!("farrier_watchers", "Open watches.");
    describe_histogram!(
        "farrier_provider_call_seconds",
        "Duration of a provider call, by verb and effect."
    );
    describe_histogram!(
        "farrier_run_start_latency_seconds",
        "Time from the acceptance of a run to its start."
    );
    describe_histogram!("farrier_request_seconds", "Duration of a request, by path.");
    describe_bmcs();
    describe_connections();
    describe_audit_streams();
    describe_nodes();
    describe_approvals();
    describe_notices();
}

fn describe_bmcs() {
    use metrics::describe_gauge;
    describe_gauge!(
        "farrier_bmc_circuit_open",
        "BMCs whose circuit breaker is open: probes do not call them."
    );
    describe_gauge!("farrier_bmc_calls", "Calls to BMCs in progress.");
    describe_gauge!("farrier_bmc_calls_limit", "The limit of concurrent calls to BMCs.");
}

fn describe_approvals() {
    metrics::describe_counter!(
        "farrier_break_glass_total",
        "Requests that went past the gate approval; `farrier approval list` names them."
    );
    metrics::counter!("farrier_break_glass_total").increment(0);
}

fn describe_notices() {
    use metrics::{describe_counter, describe_gauge};
    describe_counter!(
        "farrier_notices_total",
        "Attempts to send a notice, and those that became dead letters, by outcome."
    );
    for outcome in NoticeOutcome::ALL {
        metrics::counter!("farrier_notices_total", "outcome" => outcome.as_str()).increment(0);
    }
    describe_gauge!(
        "farrier_notifiers_failing",
        "Notifiers whose last attempt failed; `farrier notify list` names them."
    );
    describe_gauge!("farrier_dead_letters", "Notices that no receiver has accepted.");
}

fn describe_connections() {
    use metrics::{describe_counter, describe_gauge};
    describe_gauge!("farrier_connections_open", "Open connections, by listener.");
    describe_counter!(
        "farrier_connections_refused_total",
        "Connections that were refused or ended by a limit, by listener and reason."
    );
    for listener in ListenerName::ALL.map(ListenerName::as_str) {
        metrics::gauge!("farrier_connections_open", "listener" => listener).set(0.0);
        for reason in EndReason::ALL.map(EndReason::as_str) {
            metrics::counter!(
                "farrier_connections_refused_total", "listener" => listener, "reason" => reason
            )
            .increment(0);
        }
    }
}

fn describe_audit_streams() {
    use metrics::{describe_counter, describe_gauge};
    describe_counter!(
        "farrier_audit_stream_failures_total",
        "Failed attempts to send the audit log to its file or to syslog, by stream."
    );
    describe_gauge!(
        "farrier_audit_stream_waiting",
        "Sealed entries of the audit log that a stream has not sent, by stream."
    );
    describe_gauge!(
        "farrier_audit_log_cut",
        "1: the audit log lacks an entry that this server has recorded; see `farrier audit verify`."
    );
    metrics::gauge!("farrier_audit_log_cut").set(0.0);
}

fn describe_nodes() {
    use metrics::{describe_counter, describe_histogram};
    describe_counter!("farrier_heartbeats_total", "Heartbeats of agents.");
    metrics::counter!("farrier_heartbeats_total").increment(0);
    describe_counter!(
        "farrier_denied_requests_total",
        "Requests of agents and booting machines, and sign-ins, that were denied, by listener and reason."
    );
    for listener in ["agents", "netboot", "sign-in"] {
        for why in DeniedRequest::ALL {
            metrics::counter!(
                "farrier_denied_requests_total", "listener" => listener, "why" => why.as_str()
            )
            .increment(0);
        }
    }
    describe_counter!(
        "farrier_node_tasks_total",
        "Tasks that agents have completed, by kind and result."
    );
    for kind in TaskKind::ALL {
        for end in ["done", "failed"] {
            metrics::counter!("farrier_node_tasks_total", "kind" => kind.as_str(), "end" => end)
                .increment(0);
        }
    }
    describe_histogram!("farrier_reconcile_seconds", "Duration of a reconcile pass over a site.");
}

/// Updates the gauges that are read at scrape time. When the database does not answer, its numbers
/// keep their last values and the rest of the page is served.
pub(crate) async fn refresh(engine: &Engine) {
    metrics::gauge!("farrier_runs_claimed").set(engine.scheduler().in_flight() as f64);
    metrics::gauge!("farrier_watchers").set(engine.hub().watchers() as f64);
    for (name, value) in engine.providers().gauges() {
        metrics::gauge!(name).set(value as f64);
    }
    let outdated = engine.store().outdated().is_some();
    metrics::gauge!("farrier_outdated").set(f64::from(u8::from(outdated)));
    let unreadable = engine.store().unreadable().counts();
    for kind in store::RowKind::ALL {
        let count = unreadable.get(&kind).copied().unwrap_or_default();
        metrics::gauge!("farrier_unreadable_rows", "kind" => kind.as_str()).set(count as f64);
    }
    let Ok(counts) = engine.store().scan((), |(), tx| Box::pin(count(tx))).await else { return };
    metrics::gauge!("farrier_machines").set(counts.machines as f64);
    for phase in ["PENDING", "RUNNING"] {
        let found = counts.phases.iter().find(|(name, _)| name == phase);
        let count = found.map_or(0, |(_, count)| *count);
        metrics::gauge!("farrier_runs_active", "phase" => phase).set(count as f64);
    }
    if let Ok(tallies) = engine.health().tally().await {
        show_health(&tallies);
    }
    if let Ok(notifiers) = engine.notifiers().list("", MAX_NOTIFIERS).await {
        let failing = notifiers.iter().filter(|one| one.notifier.delivery.failing_since.is_some());
        metrics::gauge!("farrier_notifiers_failing").set(failing.count() as f64);
        let letters: i64 = notifiers.iter().map(|one| one.dead_letters).sum();
        metrics::gauge!("farrier_dead_letters").set(letters as f64);
    }
    if let Ok(overdue) = engine.runs().overdue().await {
        metrics::gauge!("farrier_runs_overdue").set(overdue.len() as f64);
    }
    for (kind, state, count) in counts.devices {
        metrics::gauge!("farrier_devices", "kind" => kind, "state" => state).set(count as f64);
    }
    for overdue in engine.devices().overdue().await.unwrap_or_default() {
        let gauge = metrics::gauge!("farrier_devices_overdue", "kind" => overdue.kind);
        gauge.set(overdue.count as f64);
    }
}

/// The number of series is bounded, because kinds and classifications are closed sets; a missing
/// count is exported as zero.
fn show_health(tallies: &[(TargetKind, AlertCounts)]) {
    for kind in TargetKind::ALL {
        let found = tallies.iter().find(|(one, _)| *one == kind);
        let tally = found.map(|(_, tally)| *tally).unwrap_or_default();
        let kind = kind.as_str();
        for (class, count) in [
            (AlertClass::PreventAllocations.as_str(), tally.prevent_allocations),
            (AlertClass::PreventStateChanges.as_str(), tally.prevent_state_changes),
            ("other", tally.other),
        ] {
            metrics::gauge!("farrier_health_alerts", "kind" => kind, "classification" => class)
                .set(count as f64);
        }
        metrics::gauge!("farrier_health_alerts_suppressed", "kind" => kind)
            .set(tally.suppressed as f64);
    }
}

struct Counted {
    machines: i64,
    phases: Vec<(String, i64)>,
    devices: Devices,
}

async fn count(tx: &mut Tx) -> Result<Counted> {
    Ok(Counted {
        machines: tx.count_machines().await?,
        phases: tx.phase_counts().await?,
        devices: with_zeros(tx.record_counts().await?),
    })
}

/// Counts by kind and state.
type Devices = Vec<(String, String, i64)>;

/// Adds a zero for every state that no object is in: a gauge that is not set would keep its last
/// value.
fn with_zeros(counted: Devices) -> Devices {
    let known = SubjectKind::ALL
        .into_iter()
        .flat_map(|kind| kind.states().iter().map(move |state| (kind.as_str(), *state)));
    let empty =
        known.filter(|known| !counted.iter().any(|(a, b, _)| (a.as_str(), b.as_str()) == *known));
    let empty: Devices = empty.map(|(kind, state)| (kind.into(), state.into(), 0)).collect();
    counted.into_iter().chain(empty).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_counted_once_with_zeros() {
        let counted = [("rack", "Error", 2), ("host", "Ready", 7), ("switch", "Ready", 1)];
        let counted = counted.map(|(kind, state, count)| (kind.into(), state.into(), count));
        let all = with_zeros(counted.to_vec());
        let of = |kind: &str, state: &str| -> Vec<i64> {
            let found = all.iter().filter(|(a, b, _)| (a.as_str(), b.as_str()) == (kind, state));
            found.map(|(_, _, count)| *count).collect()
        };
        for (kind, state, count) in [
            ("rack", "Error", 2),
            ("rack", "Ready", 0),
            ("host", "Ready", 7),
            ("host", "FailedFirmwareUpgrade", 0),
            ("switch", "Ready", 1),
            ("switch", "ReProvisioning", 0),
            ("power_shelf", "Maintenance", 0),
            ("node", "quarantined", 0),
            ("site", "CutOff", 0),
        ] {
            assert_eq!(of(kind, state), [count], "{kind} {state}");
        }
        let states: usize = SubjectKind::ALL.into_iter().map(|kind| kind.states().len()).sum();
        assert_eq!(all.len(), states);
    }

    #[test]
    fn directives_name_levels_and_targets() {
        use tracing::Level;
        for (level, target, most) in [
            ("info", "engine::turn", Some(Level::INFO)),
            ("info,engine=debug", "engine::turn", Some(Level::DEBUG)),
            ("info,engine=debug", "store", Some(Level::INFO)),
            ("engine=WARN,", "engine", Some(Level::WARN)),
            ("engine=warn", "store", None),
            ("engine", "engine", Some(Level::TRACE)),
            ("off", "engine", None),
            ("", "engine", Some(Level::ERROR)),
        ] {
            let filter = parse_filter(level).unwrap();
            let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            let found = levels.into_iter().find(|one| filter.would_enable(target, one));
            assert_eq!(found, most, "{level:?} {target}");
        }
        for bad in ["info,[turn{run=op-1}]=debug", "engine=loud", "engine=info=debug"] {
            let message = parse_filter(bad).unwrap_err();
            assert!(message.starts_with(&format!("log.level {bad:?} is wrong: ")), "{message}");
        }
    }
}
