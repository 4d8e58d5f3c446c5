//! LISTEN and NOTIFY: signals between replicas. A lost notification costs latency, never work.

use super::tls::Connector;
use super::{WRITE_LIMIT, execute, timeout_error};
use crate::signal::{Signal, SignalBus};
use crate::value::Value;
use crate::{Result, StoreError};
use deadpool_postgres::Pool;
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Config};

const CHANNEL: &str = "farrier";
/// The maximum number of signals in one notification.
const MAX_COALESCED: usize = 64;
/// The pause after a notification; signals of this time go into the next one.
const COALESCE_PAUSE: Duration = Duration::from_millis(2);
const RECONNECT: Duration = Duration::from_millis(500);

/// Sends signals to the other replicas after the commit, without delaying it.
pub(super) async fn run_notifier(
    pool: Pool,
    origin: String,
    mut queue: mpsc::UnboundedReceiver<Signal>,
) {
    while let Some(first) = queue.recv().await {
        let mut batch = HashSet::from([first]);
        while batch.len() < MAX_COALESCED
            && let Ok(more) = queue.try_recv()
        {
            batch.insert(more);
        }
        let words: Vec<String> = batch.iter().map(Signal::to_wire).collect();
        let payload = format!("{origin}\n{}", words.join("\n"));
        let reported = tokio::time::timeout(WRITE_LIMIT, notify(&pool, &payload)).await;
        if let Err(error) = reported.unwrap_or_else(|_| Err(timeout_error(WRITE_LIMIT))) {
            tracing::debug!(%error, "NOTIFY failed; other replicas find the change by polling");
        }
        tokio::time::sleep(COALESCE_PAUSE).await;
    }
}

async fn notify(pool: &Pool, payload: &str) -> Result<()> {
    let conn = pool.get().await.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let sql = "WITH quick AS (SELECT set_config('synchronous_commit', 'off', true)) \
               SELECT pg_notify($1, $2) FROM quick";
    execute(&conn, sql, &[Value::from(CHANNEL), Value::from(payload)]).await.map(drop)
}

/// Receives the signals of other replicas. After a reconnect it signals [`Signal::Work`],
/// [`Signal::Event`] and [`Signal::Access`], because notifications may have been missed.
pub(super) async fn run_listener(server: (Config, Connector), origin: String, bus: SignalBus) {
    loop {
        if let Err(error) = listen(&server, &origin, &bus).await {
            tracing::debug!(%error, "the LISTEN connection failed; reconnecting");
        }
        if bus.is_unused() {
            return;
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn listen(
    (config, tls): &(Config, Connector),
    origin: &str,
    bus: &SignalBus,
) -> std::result::Result<(), tokio_postgres::Error> {
    let (client, mut connection) = config.connect(tls.clone()).await?;
    let (sender, mut heartbeat) = mpsc::unbounded_channel();
    let pump = tokio::spawn(async move {
        while let Some(message) =
            futures_util::future::poll_fn(|cx| connection.poll_message(cx)).await
        {
            match message {
                Ok(AsyncMessage::Notification(notice)) => {
                    if sender.send(notice).is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    });
    client.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
    bus.publish([Signal::Work, Signal::Event, Signal::Access]);
    while let Some(notice) = heartbeat.recv().await {
        let mut lines = notice.payload().lines();
        if lines.next() != Some(origin) {
            bus.publish(lines.filter_map(Signal::from_wire));
        }
    }
    pump.abort();
    Ok(())
}

/// A random number that identifies this process among the replicas.
pub(super) fn origin() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
