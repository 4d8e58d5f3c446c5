//! `farrier secret`: the keys that protect the stored secrets.

use crate::args::SecretCommand;
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::output::Screen;
use proto::v1::{RotateSecretsRequest, RotateSecretsResponse};

pub async fn run(client: &Client, screen: &mut Screen, command: SecretCommand) -> Result<Exit> {
    match command {
        SecretCommand::Rotate => {
            let dry_run = client.is_dry_run();
            let request = RotateSecretsRequest { dry_run };
            let done = client.call(client.admin().rotate_secrets(request)).await?;
            screen.print_record(&done, |done| describe(done, dry_run))?;
        }
    }
    Ok(Exit::Success)
}

fn describe(done: &RotateSecretsResponse, dry_run: bool) -> String {
    let RotateSecretsResponse { key_id, resealed, master_key_id, .. } = done;
    if dry_run {
        return format!("{resealed} secrets would be sealed again, under master {master_key_id}\n");
    }
    let mut text = format!("{resealed} secrets are sealed with the new key {key_id}\n");
    for id in &done.removed_key_ids {
        text += &format!("the former key {id} was removed\n");
    }
    for id in &done.kept_key_ids {
        text += &format!(
            "the former key {id} stays: credentials that were set aside need it; \
             see `farrier db check`\n"
        );
    }
    for id in &done.unused_master_key_ids {
        text += &format!("the master key {id} is no longer used; remove it from all replicas\n");
    }
    text
}
