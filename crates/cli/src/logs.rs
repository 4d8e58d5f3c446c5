//! `farrier logs`: the log of an operation.

use crate::args::LogsArgs;
use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::follow::LOST;
use crate::follow::feed::{self, News, Patience, RunLog};
use crate::follow::log::LogLines;
use crate::output::Screen;
use crate::table::Tone;

pub async fn show(client: &Client, screen: &mut Screen, args: LogsArgs) -> Result<Exit, Failure> {
    let LogsArgs { operation_id, follow, offset } = args;
    let log = RunLog { client: client.clone(), run_id: operation_id, offset, follow };
    let mut feed = feed::spawn(log, Patience::OnceHeard);
    let mut lines = LogLines::default();
    let mut lost = false;
    while let Some(news) = feed.recv().await {
        match news {
            News::Item(chunk) if screen.is_human() => {
                for line in lines.push(&chunk) {
                    screen.print_line(&line)?;
                }
            }
            News::Item(chunk) => screen.print_event(&chunk, |_| String::new())?,
            News::Back => lost = false,
            News::Lost if lost => {}
            News::Lost => {
                lost = true;
                screen.print_toned_line(Tone::Dim, LOST)?;
            }
            News::Ended => break,
            News::Failed(status) => return Err(client.failure(status)),
        }
    }
    for line in lines.finish() {
        screen.print_line(&line)?;
    }
    Ok(Exit::Success)
}
