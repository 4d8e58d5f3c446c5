//! Images by name.

use crate::driver::{ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::unreadable::{Listed, RowKind, named};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::filter::Filter;
use model::image::Image;

/// The event object id of an image.
fn object(name: &str) -> String {
    format!("image/{name}")
}

impl Tx {
    pub async fn image(&mut self, name: &str) -> Result<Option<Image>> {
        let sql = "SELECT body FROM images WHERE name = $1";
        let row = self.query_one(sql, values![name]).await?;
        named(RowKind::Image, name, row.as_ref().map(image).transpose())
    }

    /// One page of the images that match, ordered by name.
    pub async fn images(
        &mut self,
        filter: &Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<Image>> {
        let query = KeysetQuery {
            sql: "SELECT body, name FROM images WHERE name > $1 ORDER BY name LIMIT $2".into(),
            after: vec![after.into()],
            fixed: Vec::new(),
            key: &[1],
            kind: Some(RowKind::Image),
            decode: image,
        };
        self.filtered_items(query, filter, limit).await
    }

    /// A conflict means that the name exists.
    pub async fn insert_image(&mut self, image: &Image, event: &NewEvent) -> Result<()> {
        let sql = "INSERT INTO images (name, body, created_at) VALUES ($1, $2, $3)";
        let body = serde_json::to_string(image)?;
        let values = values![image.name.as_str(), body, image.created_at];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.add_image_event(&image.name, "ADDED", event).await
    }

    pub async fn delete_image(&mut self, name: &str, event: &NewEvent) -> Result<()> {
        let sql = "DELETE FROM images WHERE name = $1";
        self.queue_write(Statement::new(sql, values![name]), ExpectedRows::One)?;
        self.add_image_event(name, "DELETED", event).await
    }

    async fn add_image_event(&mut self, name: &str, label: &str, event: &NewEvent) -> Result<()> {
        let version = self.last_version(&object(name)).await? + 1;
        let reported = self.object_event("image", &object(name), version, label, event);
        self.queue_write(reported, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }
}

pub(crate) fn image(row: &Row) -> Result<Image> {
    row.json(0)
}
