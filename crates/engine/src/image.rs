//! The image catalogue.

use crate::Engine;
use crate::admission::event;
use model::filter::Filter;
use model::here;
use model::image::{Artifact, Image};
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::time::Timestamp;
use store::{Cause, Listed, Result, Tx};

/// Images per page.
const PAGE: i64 = 1_000;

/// A deleted image, and its files that no other image uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedImage {
    pub image: Image,
    pub orphans: Vec<Artifact>,
}

/// The image catalogue.
#[derive(Clone)]
pub struct Images(pub(crate) Engine);

impl Images {
    /// Adds an image to the catalogue. Idempotent.
    pub async fn create(&self, image: Image, who: Requester) -> Result<Image> {
        let image = Image { created_at: self.0.now(), ..image.checked()? };
        let written =
            self.0.store().retry_write("create_image", (image, who), |(image, who), tx| {
                Box::pin(create(tx, image, who))
            });
        written.await
    }

    pub async fn get(&self, name: &str) -> Result<Image> {
        let found = self.0.store().read(name.to_string(), |name, tx| Box::pin(tx.image(name)));
        Ok(found.await?.ok_or_else(|| no_image(name))?)
    }

    /// Images that match, by name, after `after`.
    pub async fn list(&self, filter: Filter, after: &str, limit: i64) -> Result<Listed<Image>> {
        let input = (filter, after.to_string(), limit);
        let found = self
            .0
            .store()
            .scan(input, |(filter, after, limit), tx| Box::pin(tx.images(filter, after, *limit)));
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    pub async fn delete(&self, name: &str, who: Requester) -> Result<DeletedImage> {
        let input = (name.to_string(), who, self.0.now());
        let written = self.0.store().retry_write("delete_image", input, |(name, who, now), tx| {
            Box::pin(delete(tx, name, who, *now))
        });
        written.await
    }
}

fn no_image(name: &str) -> Refusal {
    Refusal::not_found("image", name, "farrier image list")
}

async fn create(tx: &mut Tx, image: &Image, who: &Requester) -> Result<Image> {
    if let Some(known) = tx.image(&image.name).await? {
        if known.body == image.body {
            return Ok(known);
        }
        let text = format!(
            "the image {} is in the catalogue with other contents, and an image never changes",
            image.name
        );
        return Err(Refusal::new(Reason::ImageExists, text)
            .next(format!("farrier image get {}   # or create it under a new name", image.name))
            .into());
    }
    let message = format!("{} image added", image.body.kind());
    let event = event(Cause::Request, &who.by, message, here!(), image.created_at);
    tx.insert_image(image, &event).await?;
    Ok(image.clone())
}

async fn delete(tx: &mut Tx, name: &str, who: &Requester, now: Timestamp) -> Result<DeletedImage> {
    let image = tx.image(name).await?.ok_or_else(|| no_image(name))?;
    if tx.image_in_use(name).await? {
        let message = format!("the image {} is being installed", name);
        return Err(Refusal::new(Reason::ImageInUse, message)
            .next("farrier operation list --filter phase=RUNNING")
            .into());
    }
    let event = event(Cause::Request, &who.by, "deleted".into(), here!(), now);
    tx.delete_image(name, &event).await?;
    let mut orphans: Vec<Artifact> = image.body.artifacts().into_iter().cloned().collect();
    let mut after = String::new();
    loop {
        // An unreadable image may have the same files.
        let page = tx.images(&Filter::default(), &after, PAGE).await?.complete()?;
        for other in page.iter().filter(|other| other.name != name) {
            let stored = other.body.artifacts();
            orphans.retain(|file| !stored.iter().any(|other| other.sha256 == file.sha256));
        }
        match page.last() {
            Some(last) if page.len() as i64 == PAGE => after.clone_from(&last.name),
            Some(_) | None => break,
        }
    }
    Ok(DeletedImage { image, orphans })
}
