//! Nodes without MAAS: creates the configuration of their agent, with a token that is shown once.

use crate::args::NodeBootstrapArgs;
use crate::client::Client;
use crate::exit::{Failure, Result, eprintln_quietly};
use crate::output::Screen;
use crate::text::one_line;
use crate::time::Clock;
use proto::v1::{BootstrapNodeRequest, NodeBundle, ReissueBootstrapRequest};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Only the owner may read and write the file.
const OWNER_ONLY: u32 = 0o600;

pub async fn run(client: &Client, screen: &mut Screen, args: NodeBootstrapArgs) -> Result<()> {
    if client.is_dry_run() {
        let bundle = request_bundle(client, args).await?;
        let node = bundle.node.clone().unwrap_or_default();
        let (id, machine) = (one_line(&node.node_id), one_line(&node.machine_id));
        let text = match id.is_empty() {
            true => format!("a new node on {machine} would get a token\n"),
            false => format!("{id} would get a token\n"),
        };
        return screen.print_record(&bundle, |_| text);
    }
    // The token is shown only once, so the file is created before the token is requested.
    let position = args.to.clone().map(ConfigFile::create).transpose()?;
    let bundle = match request_bundle(client, args).await {
        Ok(bundle) => bundle,
        Err(failure) => {
            position.iter().for_each(ConfigFile::remove);
            return Err(failure);
        }
    };
    let message = bootstrap_notice(
        &bundle,
        position.as_ref().map(|position| position.path.as_path()),
        &Clock::system(),
    );
    match position {
        Some(mut position) => {
            position.file.write_all(bundle.agent_config.as_bytes()).map_err(|error| {
                let node = bundle.node.clone().unwrap_or_default().node_id;
                Failure::refused(format!(
                    "--to {}: {error}\nnext: farrier node bootstrap --reissue {node}",
                    position.path.display()
                ))
            })?;
            // The token is in the file, so it is not printed as well.
            let rest = NodeBundle { token: String::new(), agent_config: String::new(), ..bundle };
            screen.print_record(&rest, |_| message)
        }
        None => {
            eprintln_quietly(message.trim_end());
            screen.print_record(&bundle, |bundle| bundle.agent_config.clone())
        }
    }
}

async fn request_bundle(client: &Client, args: NodeBootstrapArgs) -> Result<NodeBundle> {
    let expires_in_seconds =
        args.expires_in.map(|scenario| i64::try_from(scenario.as_secs()).unwrap_or(i64::MAX));
    match (args.reissue, args.machine_id) {
        (Some(node_id), _) => {
            let keep_session = args.keep_session;
            let request = ReissueBootstrapRequest {
                node_id,
                expires_in_seconds,
                keep_session,
                dry_run: client.is_dry_run(),
            };
            client.call(client.nodes().reissue_bootstrap(request)).await
        }
        (None, machine_id) => {
            let machine_id = machine_id.unwrap_or_default();
            let request = BootstrapNodeRequest {
                machine_id,
                expires_in_seconds,
                dry_run: client.is_dry_run(),
            };
            client.call(client.nodes().bootstrap_node(request)).await
        }
    }
}

/// A new file that only its owner may read.
struct ConfigFile {
    path: PathBuf,
    file: File,
}

impl ConfigFile {
    fn create(path: PathBuf) -> Result<Self> {
        let opened = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&path);
        match opened {
            Ok(file) => Ok(Self { path, file }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let shown = path.display();
                Err(Failure::refused(format!("--to {shown} is there already; name a new file")))
            }
            Err(error) => Err(Failure::refused(format!("--to {}: {error}", path.display()))),
        }
    }

    /// Deletes the unused file. An error is ignored: the command already fails for another reason.
    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn bootstrap_notice(bundle: &NodeBundle, file: Option<&Path>, clock: &Clock) -> String {
    let node = bundle.node.clone().unwrap_or_default();
    let (id, machine) = (one_line(&node.node_id), one_line(&node.machine_id));
    let until = clock.absolute(bundle.expires_at.as_ref());
    let position = match file {
        Some(path) => format!("in {}", path.display()),
        None => "below".into(),
    };
    format!(
        "{id} on {machine}: the configuration of its agent is {position}; put it into /etc/farrier/agent.toml there\n\
         Its token works once, until {until}, and is not shown again: farrier node bootstrap --reissue {id}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use proto::Timestamp;
    use proto::v1::Node;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_new_and_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let position = ConfigFile::create(path.clone()).unwrap();
        let mode = position.file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, OWNER_ONLY);
        let again = ConfigFile::create(path.clone()).err().unwrap();
        assert_eq!(again.exit, Exit::Refused);
        assert!(again.message.ends_with("is there already; name a new file"), "{}", again.message);
        position.remove();
        assert!(!path.exists());
        let nowhere = ConfigFile::create(dir.path().join("no/agent.toml")).err().unwrap();
        assert!(nowhere.message.contains("No such file"), "{}", nowhere.message);
    }

    #[test]
    fn the_output_contains_no_token() {
        let bundle = NodeBundle {
            node: Some(Node {
                node_id: "node-1".into(),
                machine_id: "machine-1".into(),
                ..Node::default()
            }),
            token: "s3cret".into(),
            expires_at: Some(Timestamp { seconds: 60, nanos: 0 }),
            agent_config: "token = \"s3cret\"\n".into(),
        };
        for file in [None, Some(Path::new("agent.toml"))] {
            let message = bootstrap_notice(&bundle, file, &Clock::fixed(0));
            assert!(message.contains("works once, until 1970-01-01 00:01:00 +00:00"), "{message}");
            assert!(
                message.contains("--reissue node-1") && !message.contains("s3cret"),
                "{message}"
            );
            assert_eq!(message.contains("is in agent.toml"), file.is_some(), "{message}");
        }
    }
}
