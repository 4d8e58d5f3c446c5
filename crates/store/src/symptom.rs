//! Objects whose rows show trouble, for the list of what needs a person.
//!
//! A query finds all objects with its symptom and perhaps a few others; the model decides which of
//! them need a person. Bodies are matched as text, because one that is no JSON must not fail the
//! query.

use crate::machine::{self, MachinePage};
use crate::record::{RecordPage, record};
use crate::unreadable::{Listed, RowKind};
use crate::value::values;
use crate::{Result, Tx};
use model::condition::ConditionType;
use model::lifecycle::Lifecycle;
use model::machine::Phase;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineSymptom {
    NeedsIntervention,
    OpenDiskWrite,
    /// A boot from the network was left armed.
    NetworkBoot,
    /// An operation that was to change it failed, and was not repaired since.
    FailedChange,
    /// In service or in maintenance, at rest, and its system was removed.
    NoSystem,
    /// Probed and not reachable, at rest and not in maintenance.
    Unreachable,
    /// Like `Unreachable`, for its BMC.
    BmcUnreachable,
}

impl MachineSymptom {
    fn condition(self) -> String {
        match self {
            Self::NeedsIntervention => {
                format!("(holds & {}) <> 0", ConditionType::NeedsIntervention.bit())
            }
            Self::OpenDiskWrite => "body LIKE '%\"open_disk_write\":%'".into(),
            Self::NetworkBoot => "body LIKE '%\"network_boot\":%'".into(),
            // An older version has stored `failed_imaging`.
            Self::FailedChange => "(body LIKE '%\"failed_changes\":%' OR body LIKE \
                                   '%\"failed_imaging\":%')"
                .into(),
            Self::NoSystem => {
                let unused = Phase::FactoryReady.as_str();
                format!("phase <> '{unused}' AND {}", observed_as_lost(ConditionType::Provisioned))
            }
            Self::Unreachable => lost_in_use(ConditionType::Reachable),
            Self::BmcUnreachable => lost_in_use(ConditionType::BmcReachable),
        }
    }
}

fn lost_in_use(condition: ConditionType) -> String {
    format!("phase <> '{}' AND {}", Phase::Maintenance.as_str(), observed_as_lost(condition))
}

fn observed_as_lost(condition: ConditionType) -> String {
    format!(
        "(holds & {}) = 0 AND active_run IS NULL AND body LIKE '%\"{}\":{{\"status\":false%'",
        condition.bit(),
        condition.as_str()
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordSymptom {
    InState(&'static [&'static str]),
    /// A switch or a power shelf that the last polls did not reach.
    Unreachable,
}

impl RecordSymptom {
    fn condition(self) -> String {
        match self {
            Self::InState(states) => {
                let states: Vec<String> = states.iter().map(|state| format!("'{state}'")).collect();
                format!("state IN ({})", states.join(", "))
            }
            Self::Unreachable => "body LIKE '%\"reachable\":false%'".into(),
        }
    }
}

impl Tx {
    /// The first machines with a symptom, ordered by id.
    pub async fn machines_with_symptom(
        &mut self,
        symptom: MachineSymptom,
        limit: usize,
    ) -> Result<MachinePage> {
        let (columns, condition) = (machine::COLUMNS, symptom.condition());
        let sql = format!("SELECT {columns} FROM machines WHERE {condition} ORDER BY id LIMIT $1");
        let limit = limit as i64;
        let rows = self.query(&sql, values![limit + 1]).await?;
        machine::page(&rows, limit, |row| Ok(row.text(0)?.to_string()))
    }

    /// The first records of a kind with a symptom, ordered by id.
    pub async fn records_with_symptom<R: Lifecycle>(
        &mut self,
        symptom: RecordSymptom,
        limit: usize,
    ) -> Result<RecordPage<R>> {
        let condition = symptom.condition();
        let sql = format!(
            "SELECT body, version, id FROM records WHERE kind = $1 AND {condition} \
             ORDER BY id LIMIT $2"
        );
        let rows = self.query(&sql, values![R::KIND.as_str(), limit as i64 + 1]).await?;
        let mut found = Listed::<R>::default();
        for row in rows.iter().take(limit) {
            found.push(RowKind::of_record(R::KIND), row.text(2)?, record::<R>(row))?;
        }
        let last = rows.get(limit).and(rows.get(limit.saturating_sub(1)));
        let next = last.map(|row| row.text(2).map(String::from)).transpose()?;
        Ok(RecordPage::new(found, next))
    }
}
