//! Facts that inform people and decide nothing: the durations of steps, and the last refused
//! request on each object. No transition reads or writes them.

use crate::value::{Row, values};
use crate::{Result, Tx};
use model::id::{MachineId, RunId};
use model::refusal::RefusedRequest;
use model::time::Timestamp;
use model::why::MAX_SAMPLES;
use std::collections::BTreeMap;
use std::time::Duration;

/// The duration of a step that has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepDuration {
    pub run: RunId,
    /// None: the run is not on a machine.
    pub machine: Option<MachineId>,
    pub step: String,
    pub ended_at: Timestamp,
    pub duration: Duration,
}

impl Tx {
    /// Records the duration under the hardware model of the machine, and deletes the oldest of
    /// more than [`MAX_SAMPLES`].
    pub async fn record_step_duration(&mut self, one: &StepDuration) -> Result<()> {
        let model = match &one.machine {
            Some(id) => self.hardware_model(id).await?,
            None => String::new(),
        };
        let (step, model) = (one.step.as_str(), model.as_str());
        let duration_ms = i64::try_from(one.duration.as_millis()).unwrap_or(i64::MAX);
        let sql = "INSERT INTO step_durations (step, model, ended_at, run_id, duration_ms) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
        self.execute(sql, values![step, model, one.ended_at, one.run.as_str(), duration_ms])
            .await?;
        let sql = "DELETE FROM step_durations WHERE step = $1 AND model = $2 AND ended_at < \
                   (SELECT MIN(kept.ended_at) FROM (SELECT ended_at FROM step_durations \
                   WHERE step = $1 AND model = $2 ORDER BY ended_at DESC LIMIT $3) AS kept)";
        self.execute(sql, values![step, model, MAX_SAMPLES as i64]).await.map(drop)
    }

    /// The hardware model of a machine; empty: no inspection has recorded it.
    pub async fn hardware_model(&mut self, id: &MachineId) -> Result<String> {
        let found = self.hardware_of(&[id.as_str()]).await?.remove(id);
        Ok(found.map(|recorded| recorded.summary.model).unwrap_or_default())
    }

    /// The recorded durations of these steps, by step and hardware model.
    pub async fn step_durations(
        &mut self,
        steps: &[&str],
    ) -> Result<BTreeMap<(String, String), Vec<Duration>>> {
        let sql = "SELECT step, model, duration_ms FROM step_durations WHERE step {among $1}";
        let sql = self.dialect().fill_placeholders(sql);
        let rows = self.query(&sql, values![serde_json::to_string(steps)?]).await?;
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for row in &rows {
            let key = (row.text(0)?.to_string(), row.text(1)?.to_string());
            let duration_ms = u64::try_from(row.int(2)?).unwrap_or_default();
            found.entry(key).or_default().push(Duration::from_millis(duration_ms));
        }
        Ok(found)
    }

    /// Records a refused request on an object that exists, in place of an earlier one. Another
    /// replica may have recorded a later one.
    pub async fn record_refused_request(
        &mut self,
        object_id: &str,
        refused: &RefusedRequest,
    ) -> Result<()> {
        let sql = "INSERT INTO refused_requests \
                   (object_id, refused_at, actor, request, reason, message) \
                   VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (object_id) DO UPDATE SET \
                   refused_at = $2, actor = $3, request = $4, reason = $5, message = $6 \
                   WHERE refused_requests.refused_at <= $2";
        let RefusedRequest { at, by, request, reason, message } = refused;
        let (by, request) = (by.as_str(), request.as_str());
        let values = values![object_id, *at, by, request, reason.as_str(), message.as_str()];
        self.execute(sql, values).await.map(drop)
    }

    /// Deletes the refused requests of before this time.
    pub async fn expire_refused_requests(&mut self, before: Timestamp) -> Result<()> {
        let sql = "DELETE FROM refused_requests WHERE refused_at < $1";
        self.execute(sql, values![before]).await.map(drop)
    }

    pub async fn refused_request(&mut self, object_id: &str) -> Result<Option<RefusedRequest>> {
        let sql = "SELECT refused_at, actor, request, reason, message FROM refused_requests \
                   WHERE object_id = $1";
        let row = self.query_one(sql, values![object_id]).await?;
        row.as_ref().map(refused_request).transpose()
    }
}

fn refused_request(row: &Row) -> Result<RefusedRequest> {
    Ok(RefusedRequest {
        at: row.time(0)?,
        by: row.text(1)?.to_string(),
        request: row.text(2)?.to_string(),
        reason: row.text(3)?.to_string(),
        message: row.text(4)?.to_string(),
    })
}
