//! The host of a machine behind MAAS: commands, network and cluster over SSH, beside MAAS's power,
//! netboot and imaging. Another provider executes them; MAAS only names the address.

use super::MaasProvider;
use crate::host_probe::host_answers;
use crate::peer_login::TrustPolicy;
use crate::port::{Journal, Provider, Target};
use crate::power::POLL_INTERVAL;
use model::condition::ConditionObservation;
use model::effect::{CallResult, CallVerb, Effect, ProviderAnswer, ProviderCall, RebootMode};
use model::fault::{Fault, FaultCode, Result};
use std::sync::Arc;
use tokio::time::Instant;

/// The way in which an effect reaches the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Maas,
    /// SSH to the host.
    Host,
    /// The API of its cluster; the host is not called.
    Cluster,
}

const fn reach(effect: &Effect) -> Reach {
    match effect {
        Effect::Ssh { .. }
        | Effect::Net { .. }
        | Effect::Join { .. }
        | Effect::Leave { .. }
        | Effect::Reboot { mode: RebootMode::InBand, .. } => Reach::Host,
        Effect::Verify { .. } | Effect::Drain { .. } | Effect::Uncordon { .. } => Reach::Cluster,
        Effect::Reboot { mode: RebootMode::Bmc, .. }
        | Effect::Netboot { .. }
        | Effect::Repave { .. }
        | Effect::Rma { .. }
        | Effect::Power { .. }
        | Effect::Device { .. }
        | Effect::Stage { .. }
        | Effect::ChildRuns { .. } => Reach::Maas,
    }
}

impl MaasProvider {
    /// Lets another provider reach the hosts of the machines, and their clusters.
    #[must_use]
    pub fn with_hosts(mut self, hosts: Arc<dyn Provider>) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// Executes an effect on the host or in its cluster. None: it is for MAAS.
    pub(super) async fn call_host(
        &self,
        target: &Target,
        request: &ProviderCall,
        journal: &Journal,
    ) -> Option<CallResult> {
        let hosts = self.hosts.as_ref()?;
        let target = match reach(&request.effect) {
            Reach::Maas => return None,
            Reach::Cluster => target.clone(),
            Reach::Host => match self.host_of(target).await {
                Ok(host) => host,
                Err(fault) => return Some(Err(fault)),
            },
        };
        Some(hosts.call(&target, request, journal).await)
    }

    /// The machine with the address of its host: its own, or else the one that MAAS reports.
    async fn host_of(&self, target: &Target) -> Result<Target> {
        let mut host = target.clone();
        if !host.spec.ssh_endpoint.is_empty() {
            return Ok(host);
        }
        let (_, machine) = self.machine_of(target).await?;
        let Some(address) = machine.ip_addresses.first() else {
            let message = format!(
                "the machine has no ssh_endpoint, and MAAS has no address of {}; \
                 give one: `farrier machine update {} --ssh-endpoint HOST`",
                machine.system_id, target.id
            );
            return Err(Fault::new(FaultCode::NotSupported, message));
        };
        host.spec.ssh_endpoint = match address.contains(':') {
            true => format!("[{address}]"),
            false => address.clone(),
        };
        Ok(host)
    }

    /// After an installation the host has a new key, which is trusted on first use, and its system
    /// is still starting: MAAS calls it Deployed before it can be logged in to. The installation is
    /// proven, so nothing here changes the answer.
    pub(super) async fn meet_new_host(
        &self,
        target: &Target,
        (request, journal): (&ProviderCall, &Journal),
        answer: &CallResult,
    ) {
        let installed = matches!(request.effect, Effect::Repave { .. })
            && request.verb != CallVerb::Observe
            && matches!(answer, Ok(ProviderAnswer::Done(_)));
        let Some(hosts) = self.hosts.as_ref().filter(|_| installed) else { return };
        // Without an address no key was pinned.
        if let Err(fault) = self.unpin_host(hosts.as_ref(), target).await
            && fault.code != FaultCode::NotSupported
        {
            journal.write_line(format!("the old host key is kept: {fault}")).await;
        }
        // The other verbs are answered within seconds.
        let waits = matches!(request.verb, CallVerb::Perform | CallVerb::Follow)
            && !target.spec.ssh_endpoint.is_empty();
        let began = Instant::now();
        while waits && began.elapsed() < self.settings.host_wait && !host_answers(target).await {
            tokio::time::sleep(self.settings.poll_interval.min(POLL_INTERVAL)).await;
        }
    }

    /// Removes the key of the host at the address to which its commands go.
    async fn unpin_host(&self, hosts: &dyn Provider, target: &Target) -> Result<()> {
        if matches!(self.settings.trust, TrustPolicy::Pinned) {
            return Ok(());
        }
        for peer in hosts.peers(&self.host_of(target).await?.spec) {
            self.store.pin(&peer, None).await?;
        }
        Ok(())
    }

    /// The evidence of the machine's cluster.
    pub(super) async fn probe_cluster(&self, target: &Target) -> Vec<ConditionObservation> {
        let Some(hosts) = &self.hosts else { return Vec::new() };
        // Only its cluster is read: MAAS tells of the BMC, and the host is probed beside it.
        let mut alone = target.clone();
        alone.spec.bmc_endpoint.clear();
        alone.spec.ssh_endpoint.clear();
        hosts.probe(&alone).await.unwrap_or_default()
    }
}
