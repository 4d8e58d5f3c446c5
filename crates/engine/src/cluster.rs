//! Clusters: what operators ask about them. Nothing about a cluster is stored but its credential.

use crate::engine::Engine;
use crate::machine::hardware::HardwareResult;
use model::effect::DrainOptions;
use model::id::MachineId;
use model::refusal::{Reason, Refusal};
use model::target::TargetId;
use model::text;
use providers::Target;
use providers::cluster_check::{ClusterInspector, ClusterReport, DrainPreview};
use store::Result;

pub struct Clusters(pub(crate) Engine);

impl Clusters {
    /// Checks the cluster of this name. Changes nothing in it.
    pub async fn check(&self, name: &str) -> Result<ClusterReport> {
        text::check_name("name", name)?;
        Ok(self.inspector()?.check_cluster(name).await)
    }

    /// Previews a drain of the machine's node. Empty for a machine that belongs to no cluster.
    pub async fn preview_drain(
        &self,
        id: &MachineId,
        options: &DrainOptions,
    ) -> HardwareResult<DrainPreview> {
        let machine = self.0.machines().get(id).await?;
        let provider = self.0.providers().cluster_provider(&machine.spec.provider);
        let target = Target { id: TargetId::from(&machine.id), spec: machine.spec.clone() };
        match provider {
            None => Ok(DrainPreview::default()),
            Some(provider) => Ok(provider.preview_drain(&target, options).await?),
        }
    }

    fn inspector(&self) -> Result<&dyn ClusterInspector> {
        let providers = self.0.providers();
        let names = providers.names();
        let mut able = names.iter().filter_map(|name| providers.get(name)?.cluster_inspector());
        Ok(able.next().ok_or_else(|| {
            Refusal::new(Reason::CapabilityMissing, "no provider of this server reaches clusters")
        })?)
    }
}
