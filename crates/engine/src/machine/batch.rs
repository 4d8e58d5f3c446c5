//! Registering several machines in one transaction: all of them, or none.

use super::{DescribedMachine, Machines, Put};
use crate::Change;
use crate::change::Expected;
use model::id::MachineId;
use model::machine::Machine;
use model::refusal::Refusal;
use store::{Result, StoreError, Tx};

/// One machine after a batch.
#[derive(Debug, Clone)]
pub struct Registration {
    pub machine: Machine,
    pub change: RegistrationChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationChange {
    Created,
    Updated,
    None,
}

/// A machine of a batch and its change, or the refusal of its description.
pub type BatchEntry = std::result::Result<(MachineId, Change<Machine, DescribedMachine>), Refusal>;

impl Machines {
    /// Registers these machines in one transaction. Known machines are updated, or with `only_new`
    /// left as they are. The first refusal refuses all; a dry run returns every refusal instead.
    pub async fn register_all(
        &self,
        machines: Vec<BatchEntry>,
        only_new: bool,
        actor: String,
    ) -> Result<Vec<std::result::Result<Registration, Refusal>>> {
        let now = self.0.now();
        let prepare = |entry: BatchEntry| -> Result<Put> {
            let (id, change) = entry?;
            let change = self.checked_change(change);
            let (actor, caller) = (actor.clone(), self.0.caller().clone());
            Ok(Put { id, change, expected: Expected::Any, actor, caller, now })
        };
        let mut puts = Vec::with_capacity(machines.len());
        for entry in machines {
            puts.push(refusal_or(prepare(entry))?);
        }
        let batch = Batch { puts, only_new, is_dry_run: self.0.store().is_dry_run() };
        let is_dry_run = batch.is_dry_run;
        let written = self
            .0
            .store()
            .retry_write("register_machines", batch, |batch, tx| Box::pin(batch.run(tx)));
        let registrations = written.await?;
        if !is_dry_run {
            for registration in registrations.iter().flatten() {
                self.0.observer().poke(&registration.machine.id);
            }
        }
        Ok(registrations)
    }
}

/// Separates a refusal, which concerns one machine, from an error, which concerns all.
fn refusal_or<T>(result: Result<T>) -> Result<std::result::Result<T, Refusal>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(StoreError::Refused(refusal)) => Ok(Err(refusal)),
        Err(error) => Err(error),
    }
}

struct Batch {
    puts: Vec<std::result::Result<Put, Refusal>>,
    only_new: bool,
    is_dry_run: bool,
}

impl Batch {
    async fn run(&self, tx: &mut Tx) -> Result<Vec<std::result::Result<Registration, Refusal>>> {
        let mut registrations = Vec::with_capacity(self.puts.len());
        for (index, put) in self.puts.iter().enumerate() {
            let done = match put {
                Ok(put) => refusal_or(self.register(tx, put).await)?,
                Err(refusal) => Err(refusal.clone()),
            };
            match done {
                Err(refusal) if !self.is_dry_run => {
                    return Err(
                        at_index(index, put.as_ref().ok().map(|put| &put.id), refusal).into()
                    );
                }
                done => registrations.push(done),
            }
        }
        Ok(registrations)
    }

    async fn register(&self, tx: &mut Tx, put: &Put) -> Result<Registration> {
        let known = tx.machine_locked(&put.id).await?;
        if let (Some(machine), true) = (&known, self.only_new) {
            let change = RegistrationChange::None;
            return Ok(Registration { machine: machine.clone(), change });
        }
        let machine = put.run(tx).await?;
        let change = match known.map(|known| known.version) {
            None => RegistrationChange::Created,
            Some(version) if version == machine.version => RegistrationChange::None,
            Some(_) => RegistrationChange::Updated,
        };
        Ok(Registration { machine, change })
    }
}

/// Names the machine of a refused batch.
fn at_index(index: usize, id: Option<&MachineId>, refusal: Refusal) -> Refusal {
    let place = format!("machines[{index}]");
    let field = refusal.field.map(|field| match field.strip_prefix("machine") {
        Some(rest) => format!("{place}{rest}"),
        None => format!("{place}.{field}"),
    });
    let name = id.map(|id| format!(" {id}")).unwrap_or_default();
    Refusal { field, message: format!("{place}{name}: {}", refusal.message), ..refusal }
}
