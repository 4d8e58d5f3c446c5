//! The index of machines by cluster and node name. The name is a part of the machine's spec; the
//! index keeps two machines from sharing one.

use crate::driver::{ExpectedRows, Statement};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::id::MachineId;
use model::machine::NodeName;

impl Tx {
    /// The machine that has this name.
    pub async fn machine_of_node_name(&mut self, name: &NodeName) -> Result<Option<MachineId>> {
        let sql = "SELECT machine_id FROM node_names WHERE cluster = $1 AND name = $2";
        let row = self.query_one(sql, values![name.cluster.as_str(), name.name.as_str()]).await?;
        row.map(|row| Ok(MachineId::trusted(row.text(0)?))).transpose()
    }

    /// The name of a machine, as it is in the index.
    pub async fn node_name_of(&mut self, machine: &MachineId) -> Result<Option<NodeName>> {
        let sql = "SELECT cluster, name FROM node_names WHERE machine_id = $1";
        let row = self.query_one(sql, values![machine.as_str()]).await?;
        let name = |row: Row| {
            Ok(NodeName { cluster: row.text(0)?.to_string(), name: row.text(1)?.to_string() })
        };
        row.map(name).transpose()
    }

    /// Replaces the name of a machine. It is written with the machine's spec. A conflict means that
    /// another transaction gave the name to another machine.
    pub fn write_node_name(&mut self, machine: &MachineId, name: Option<&NodeName>) -> Result<()> {
        self.delete_node_name(machine)?;
        let Some(NodeName { cluster, name }) = name else { return Ok(()) };
        let sql = "INSERT INTO node_names (cluster, name, machine_id) VALUES ($1, $2, $3)";
        let values = values![cluster.as_str(), name.as_str(), machine.as_str()];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    pub(crate) fn delete_node_name(&mut self, machine: &MachineId) -> Result<()> {
        let sql = "DELETE FROM node_names WHERE machine_id = $1";
        self.queue_write(Statement::new(sql, values![machine.as_str()]), ExpectedRows::Any)
    }
}
