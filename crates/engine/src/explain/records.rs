//! Explanations of racks, switches and power shelves. One in Error names the repairs of the fault
//! of its failed operation.

use super::offered::Offer;
use super::{Explained, readable};
use crate::Engine;
use crate::device::ExplainedDevice;
use model::id::{RackId, RunId};
use model::machine::Machine;
use model::run::Run;
use model::target::TargetId;
use model::why::skipped_firmware;
use store::Result;

impl Engine {
    pub(super) async fn explain_device(
        &self,
        id: &str,
        device: ExplainedDevice,
        offer: Offer<'_>,
    ) -> Result<Explained> {
        let ExplainedDevice { mut explanation, run, claimed_by } = device;
        if let Some(run) = &run {
            explanation.add_cause_repairs(run, None, None);
            self.drop_incapable(None, &mut explanation);
        }
        let trace = self.read_trace(id, TargetId::parse(id).ok()).await?;
        Box::pin(self.drop_refused((id, offer), [], &mut explanation)).await;
        trace.tell(id, self, &mut explanation);
        let run_id = run.map(|run| run.spec.id);
        Ok(Explained { explanation, run_id, claimed_by, ..Explained::default() })
    }

    pub(super) async fn explain_rack(
        &self,
        id: &str,
        rack: &RackId,
        offer: Offer<'_>,
    ) -> Result<Explained> {
        let mut explained = self.racks().explain(rack).await?;
        if let Some(run) = &explained.run_id {
            let (run, machine) = self.find_with_machine(run).await?;
            if let Some(run) = &run {
                explained.explanation.add_cause_repairs(run, machine.as_ref(), None);
                self.drop_incapable(machine.as_ref(), &mut explained.explanation);
            }
        }
        let trace = self.read_trace(id, Some(TargetId::from(rack))).await?;
        let latest = trace.latest.as_ref();
        Box::pin(self.drop_refused((id, offer), [latest], &mut explained.explanation)).await;
        explained.explanation.notes.extend(trace.latest.as_ref().and_then(skipped_firmware));
        trace.tell(id, self, &mut explained.explanation);
        Ok(explained)
    }

    /// A run and its machine. One that cannot be read is left out.
    async fn find_with_machine(&self, run: &RunId) -> Result<(Option<Run>, Option<Machine>)> {
        let found = self.store().read(run.clone(), |run, tx| {
            Box::pin(async move {
                let run = readable(tx.run(run).await)?;
                let machine = match run.as_ref().and_then(|run| run.spec.target.machine()) {
                    Some(id) => readable(tx.machine(&id).await)?,
                    None => None,
                };
                Ok((run, machine))
            })
        });
        found.await
    }
}
