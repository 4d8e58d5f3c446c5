//! Lists whose filter is applied after their rows were read: small tables, and histories. They are
//! read in batches, each after the key of the last row, until a page is full.

use crate::unreadable::{Listed, RowKind};
use crate::value::{Row, Value};
use crate::{Result, Tx};
use model::filter::{Filter, FilterValues};

/// The rows of one query when a filter skips some.
const BATCH: i64 = 500;

/// A query in the order of a key. Its parameters are the key, then the fixed ones, then the limit.
pub(crate) struct KeysetQuery<T> {
    pub sql: String,
    /// The key of the last row of the page before.
    pub after: Vec<Value>,
    pub fixed: Vec<Value>,
    /// The columns of the key.
    pub key: &'static [usize],
    /// Rows of a kind that cannot be decoded are left out. Without a kind they fail the list.
    pub kind: Option<RowKind>,
    pub decode: fn(&Row) -> Result<T>,
}

impl Tx {
    /// The first `limit` items after the key that match.
    pub(crate) async fn filtered_items<T: FilterValues>(
        &mut self,
        query: KeysetQuery<T>,
        filter: &Filter,
        limit: i64,
    ) -> Result<Listed<T>> {
        let KeysetQuery { sql, mut after, fixed, key, kind, decode } = query;
        let batch = if filter.terms.is_empty() { limit.max(1) } else { limit.max(BATCH) };
        let size = usize::try_from(limit).unwrap_or_default();
        let mut found = Listed::default();
        loop {
            let values = [after.clone(), fixed.clone(), vec![batch.into()]].concat();
            let rows = self.query(&sql, &values).await?;
            let read = rows.len() as i64;
            for row in &rows {
                after = key.iter().map(|column| row.cell(*column)).collect::<Result<_>>()?;
                match (kind, decode(row)) {
                    (_, Ok(item)) if !filter.matches_values(&item) => {}
                    (_, Ok(item)) => found.items.push(item),
                    (None, Err(error)) => return Err(error),
                    (Some(kind), unreadable) => {
                        found.push(kind, row.text(key[0])?, unreadable)?;
                    }
                }
                if found.items.len() == size {
                    return Ok(found);
                }
            }
            if read < batch {
                return Ok(found);
            }
        }
    }
}
