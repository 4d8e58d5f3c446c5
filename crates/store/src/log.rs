//! Logs of runs, as chunks at byte offsets. Appending never fails a transition: chunks that exist
//! already are ignored.

use crate::driver::{ExpectedRows, Statement};
use crate::signal::Signal;
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::id::RunId;
use model::time::Timestamp;

/// A log chunk to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLog {
    pub start: i64,
    pub ts: Timestamp,
    pub step: String,
    pub attempt: u32,
    pub stream: &'static str,
    pub data: Vec<u8>,
}

/// A stored log chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub start: i64,
    pub ts: Timestamp,
    pub step: String,
    pub stream: String,
    pub data: Vec<u8>,
}

/// The rows of one INSERT; both databases limit the number of parameters.
const MAX_ROWS_PER_INSERT: usize = 64;

impl Tx {
    pub fn append_log(&mut self, run: &RunId, lines: &[NewLog]) -> Result<()> {
        for chunk in lines.chunks(MAX_ROWS_PER_INSERT) {
            let mut sql = String::from(
                "INSERT INTO logs (run_id, start, ts, step, attempt, stream, data) VALUES ",
            );
            let mut all = Vec::with_capacity(chunk.len() * 7);
            for (index, line) in chunk.iter().enumerate() {
                let n = index * 7;
                let comma = if index == 0 { "" } else { ", " };
                sql.push_str(&format!(
                    "{comma}(${}, ${}, ${}, ${}, ${}, ${}, ${})",
                    n + 1,
                    n + 2,
                    n + 3,
                    n + 4,
                    n + 5,
                    n + 6,
                    n + 7
                ));
                all.extend([
                    Value::from(run.as_str()),
                    Value::from(line.start),
                    Value::from(line.ts),
                    Value::from(line.step.as_str()),
                    Value::from(i64::from(line.attempt)),
                    Value::from(line.stream),
                    Value::from(line.data.clone()),
                ]);
            }
            sql.push_str(" ON CONFLICT DO NOTHING");
            self.queue_write(Statement { sql, values: all }, ExpectedRows::Any)?;
        }
        if !lines.is_empty() {
            self.signal(Signal::Log(run.clone()));
        }
        Ok(())
    }

    /// Like [`Tx::append_log`], but a conflict if the claim under `epoch` was lost.
    pub async fn append_log_claimed(
        &mut self,
        run: &RunId,
        epoch: i64,
        lines: &[NewLog],
    ) -> Result<()> {
        let sql = "SELECT epoch FROM subjects WHERE id = $1 AND owner IS NOT NULL";
        let row = self.query_one(sql, values![run.as_str()]).await?;
        match row.map(|row| row.int(0)).transpose()? {
            Some(claimed) if claimed == epoch => self.append_log(run, lines),
            Some(_) | None => Err(StoreError::Conflict),
        }
    }

    /// The log from byte `offset` on, at most `limit` chunks.
    pub async fn read_log(&mut self, run: &RunId, offset: i64, limit: i64) -> Result<Vec<LogLine>> {
        let sql = "SELECT start, ts, step, stream, data FROM logs WHERE run_id = $1 AND start >= \
                   COALESCE((SELECT MAX(start) FROM logs WHERE run_id = $1 AND start <= $2), 0) \
                   ORDER BY start LIMIT $3";
        let rows = self.query(sql, values![run.as_str(), offset, limit]).await?;
        let lines = rows.iter().map(line).collect::<Result<Vec<_>>>()?;
        Ok(lines.into_iter().filter_map(|line| from_offset(line, offset)).collect())
    }

    /// The length of a run's log in bytes.
    pub async fn log_end(&mut self, run: &RunId) -> Result<i64> {
        let sql = "SELECT start, data FROM logs WHERE run_id = $1 ORDER BY start DESC LIMIT 1";
        match self.query_one(sql, values![run.as_str()]).await? {
            Some(row) => Ok(row.int(0)? + row.bytes(1)?.len() as i64),
            None => Ok(0),
        }
    }

    /// The last chunk that a step has logged.
    pub async fn last_log_line(&mut self, run: &RunId, step: &str) -> Result<Option<LogLine>> {
        let sql = "SELECT start, ts, step, stream, data FROM logs WHERE run_id = $1 AND step = $2 \
                   ORDER BY start DESC LIMIT 1";
        let row = self.query_one(sql, values![run.as_str(), step]).await?;
        row.as_ref().map(line).transpose()
    }

    /// The bytes that one attempt of a step has logged.
    pub async fn logged_bytes(&mut self, run: &RunId, step: &str, attempt: u32) -> Result<u64> {
        let sql = "SELECT CAST(COALESCE(SUM(LENGTH(data)), 0) AS BIGINT) FROM logs \
                   WHERE run_id = $1 AND step = $2 AND attempt = $3";
        let row = self.query_one(sql, values![run.as_str(), step, i64::from(attempt)]).await?;
        let bytes = row.map(|row| row.int(0)).transpose()?;
        Ok(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default())
    }
}

fn line(row: &Row) -> Result<LogLine> {
    Ok(LogLine {
        start: row.int(0)?,
        ts: row.time(1)?,
        step: row.text(2)?.to_string(),
        stream: row.text(3)?.to_string(),
        data: row.bytes(4)?,
    })
}

/// Cuts off the bytes before the offset.
fn from_offset(mut line: LogLine, offset: i64) -> Option<LogLine> {
    let skip = usize::try_from(offset - line.start).unwrap_or(0);
    if skip >= line.data.len() {
        return None;
    }
    line.data.drain(..skip);
    line.start += skip as i64;
    Some(line)
}
