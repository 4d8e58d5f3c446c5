//! Checks the images of a new run, so that a missing one is refused when it is asked for and not in
//! the middle of the run.

use super::start::StartRun;
use model::effect::DiskContent;
use model::fault::FaultCode;
use model::machine::Machine;
use model::plan::IMAGE_REF;
use model::refusal::{Reason, Refusal};
use model::run::Run;
use model::target::TargetId;
use providers::Target;
use std::time::Duration;
use store::{Result, Store, Tx};

/// The longest wait for a provider that has its own images.
const CHECK_LIMIT: Duration = Duration::from_secs(3);

/// The images that the run installs.
fn images_of(run: &Run) -> impl Iterator<Item = &str> {
    run.spec.steps.iter().filter_map(|step| match step.effect.facts().disk {
        Some(DiskContent::Image(image)) => Some(image),
        Some(DiskContent::SiteImage(_) | DiskContent::Nothing) | None => None,
    })
}

impl StartRun {
    /// Checks the images in the catalogue, in the transaction that creates the run.
    pub(crate) async fn check_images(
        &self,
        tx: &mut Tx,
        machine: &Machine,
        run: &Run,
    ) -> Result<()> {
        let provider = self.providers.get(&machine.spec.provider);
        if !provider.is_some_and(|provider| provider.requires_catalog()) {
            return Ok(());
        }
        for image in images_of(run) {
            if tx.image(image).await?.is_none() {
                let unknown = Refusal::not_found("image", image, "farrier image list");
                return Err(unknown.of_field(IMAGE_REF).into());
            }
        }
        Ok(())
    }

    /// Checks the images of a provider that has its own, before the transaction, because the
    /// provider is called. One that does not answer refuses nothing: the step asks it again.
    pub(crate) async fn check_provider_images(&self, store: &Store) -> Result<()> {
        let read = store.read(self.clone(), |start, tx| Box::pin(start.new_images(tx)));
        let Some((target, images)) = read.await? else { return Ok(()) };
        let Some(provider) = self.providers.get(&target.spec.provider) else { return Ok(()) };
        for image in images {
            let checked = provider.check_image(&target, &image);
            let Ok(checked) = tokio::time::timeout(CHECK_LIMIT, checked).await else {
                tracing::warn!(%image, "the image was not checked in time");
                return Ok(());
            };
            match checked {
                Err(fault) if fault.code == FaultCode::ImageUnknown => {
                    let unknown = Refusal::new(Reason::NotFound, fault.message);
                    return Err(unknown.of_field(IMAGE_REF).next("farrier site list").into());
                }
                Err(fault) => tracing::warn!(%image, %fault, "the image cannot be checked now"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// The machine and the images of a request that makes a new run. A request that is refused
    /// for another reason is refused by the transaction.
    async fn new_images(&self, tx: &mut Tx) -> Result<Option<(Target, Vec<String>)>> {
        let id = TargetId::from(&self.start.machine_id);
        let Some(machine) = tx.machine(&self.start.machine_id).await? else { return Ok(None) };
        if tx.run_of_request(&id, &self.start.request_id).await?.is_some() {
            return Ok(None);
        }
        let Ok(run) = self.new_run(tx, &machine).await else { return Ok(None) };
        let images = images_of(&run).map(str::to_string).collect();
        Ok(Some((Target { id, spec: machine.spec }, images)))
    }
}
