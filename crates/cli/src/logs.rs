//! `farrier logs`: the log of an operation.

use crate::args::LogsArgs;
use crate::client::Client;
use crate::exit::{Exit, Result};
use crate::follow::feed::{self, FeedMessage, ReconnectPolicy, RunLogSource};
use crate::follow::log::LogLineBuffer;
use crate::follow::notice::ConnectionNotice;
use crate::operation::resolve_operation_id;
use crate::output::Screen;

pub async fn print_log(client: &Client, screen: &mut Screen, args: LogsArgs) -> Result<Exit> {
    let LogsArgs { operation_id, no_follow, follow: _, offset } = args;
    let run_id = resolve_operation_id(client, &operation_id).await?;
    let log = RunLogSource { client: client.clone(), run_id, offset, follow: !no_follow };
    let mut feed = feed::spawn(log, ReconnectPolicy::AfterFirstResponse);
    let mut lines = LogLineBuffer::default();
    let mut notice = ConnectionNotice::default();
    while let Some(message) = feed.recv().await {
        match message {
            FeedMessage::Item(chunk) if screen.is_human() => {
                for line in lines.push(&chunk) {
                    screen.print_line(&line)?;
                }
            }
            FeedMessage::Item(chunk) => screen.print_event(&chunk, |_| String::new())?,
            FeedMessage::Disconnected => notice.lost(screen)?,
            FeedMessage::Reconnected => notice.back(screen)?,
            FeedMessage::Ended => break,
            FeedMessage::Failed(status) => return Err(client.failure(status)),
        }
    }
    for line in lines.finish() {
        screen.print_line(&line)?;
    }
    Ok(Exit::Success)
}
