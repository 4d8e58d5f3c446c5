//! The catalogue of images.

use crate::Engine;
use crate::submit::event;
use model::here;
use model::image::{Artifact, Image};
use model::refusal::{Refusal, RefusalKind};
use model::run::act::Who;
use model::time::Timestamp;
use store::{Cause, Result, Tx, Work};

/// How many images are read at once to see which files are still in use.
const PAGE: i64 = 1_000;

/// An image that is gone, and its files that no other image has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedImage {
    pub image: Image,
    pub orphans: Vec<Artifact>,
}

impl Engine {
    /// Puts an image into the catalogue. The same again is answered with what is there.
    pub async fn add_image(&self, image: Image, who: Who) -> Result<Image> {
        let image = Image { created_at: self.now(), ..image.checked()? };
        let add = || AddImage { image: image.clone(), who: who.clone() };
        self.racing(|| self.store().write(add())).await
    }

    pub async fn image(&self, name: &str) -> Result<Image> {
        let found = self.store().read(GetImage { name: name.into() }).await?;
        Ok(found.ok_or_else(|| no_image(name))?)
    }

    /// By name, after one.
    pub async fn images(&self, after: &str, limit: i64) -> Result<Vec<Image>> {
        self.store().scan(ListImages { after: after.into(), limit }).await
    }

    pub async fn delete_image(&self, name: &str, who: Who) -> Result<DeletedImage> {
        let now = self.now();
        let delete = || DeleteImage { name: name.into(), who: who.clone(), now };
        self.racing(|| self.store().write(delete())).await
    }
}

fn no_image(name: &str) -> Refusal {
    Refusal::not_found("image", name, "farrier image list")
}

struct GetImage {
    name: String,
}

impl Work for GetImage {
    type Out = Option<Image>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        tx.image(&self.name).await
    }
}

struct ListImages {
    after: String,
    limit: i64,
}

impl Work for ListImages {
    type Out = Vec<Image>;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Out> {
        tx.images(&self.after, self.limit).await
    }
}

struct AddImage {
    image: Image,
    who: Who,
}

impl Work for AddImage {
    type Out = Image;

    async fn run(&self, tx: &mut Tx) -> Result<Image> {
        let image = &self.image;
        if let Some(known) = tx.image(&image.name).await? {
            if known.body == image.body {
                return Ok(known);
            }
            let said = format!(
                "the image {} is in the catalogue with other contents, and an image never changes",
                image.name
            );
            return Err(Refusal::new(RefusalKind::Exists, "IMAGE_EXISTS", said)
                .next(format!("farrier image get {}   # or add it under a new name", image.name))
                .into());
        }
        let message = format!("{} image added", image.body.kind());
        let event = event(Cause::Request, &self.who.by, message, here!(), image.created_at);
        tx.insert_image(image, &event).await?;
        Ok(image.clone())
    }
}

struct DeleteImage {
    name: String,
    who: Who,
    now: Timestamp,
}

impl Work for DeleteImage {
    type Out = DeletedImage;

    async fn run(&self, tx: &mut Tx) -> Result<DeletedImage> {
        let image = tx.image(&self.name).await?.ok_or_else(|| no_image(&self.name))?;
        if tx.image_in_use(&self.name).await? {
            let said = format!("the image {} is being installed", self.name);
            return Err(Refusal::precondition("IMAGE_IN_USE", said)
                .next("farrier ops --filter phase=RUNNING")
                .into());
        }
        let event = event(Cause::Request, &self.who.by, "deleted".into(), here!(), self.now);
        tx.delete_image(&self.name, &event).await?;
        let mut orphans: Vec<Artifact> = image.body.artifacts().into_iter().cloned().collect();
        let mut after = String::new();
        loop {
            let page = tx.images(&after, PAGE).await?;
            for other in page.iter().filter(|other| other.name != self.name) {
                let kept = other.body.artifacts();
                orphans.retain(|file| !kept.iter().any(|other| other.sha256 == file.sha256));
            }
            match page.last() {
                Some(last) if page.len() as i64 == PAGE => after.clone_from(&last.name),
                Some(_) | None => break,
            }
        }
        Ok(DeletedImage { image, orphans })
    }
}
