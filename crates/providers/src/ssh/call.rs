//! Runs one command on a host, with bounded input and output.

use super::connect::Host;
use model::fault::{Fault, FaultCode, Result};
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use std::time::Duration;
use tokio::time::timeout;

/// The type of extended data for standard error.
const STDERR: u32 = 1;

/// The output and exit status of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// None if a signal ended the command.
    pub status: Option<u32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The reason why a call failed. The caller maps it to a fault.
pub(super) enum CallError {
    /// The command was not sent.
    Unsent(String),
    /// It was sent, and the connection ended before the result.
    Lost(String),
    /// It was sent and did not end within the time limit.
    TimedOut(String),
    /// It cannot be sent.
    Refused(String),
    /// The output exceeds the limit.
    TooLong(String),
}

impl CallError {
    /// The fault of a command that may have had an effect.
    pub(super) fn into_change_fault(self) -> Fault {
        match self {
            Self::Unsent(message) => Fault::new(FaultCode::HostUnreachable, message),
            Self::Lost(message) => Fault::new(FaultCode::AnswerLost, message),
            Self::TimedOut(message) => Fault::new(FaultCode::StepTimeout, message),
            Self::Refused(message) => Fault::new(FaultCode::NotSupported, message),
            Self::TooLong(message) => Fault::new(FaultCode::AnswerGarbled, message),
        }
    }

    /// The fault of a command that only reads.
    pub(super) fn into_read_fault(self) -> Fault {
        match self {
            Self::Unsent(message) | Self::Lost(message) | Self::TimedOut(message) => {
                Fault::new(FaultCode::HostUnreachable, message)
            }
            Self::Refused(message) => Fault::new(FaultCode::NotSupported, message),
            Self::TooLong(message) => Fault::new(FaultCode::AnswerGarbled, message),
        }
    }
}

impl Host {
    /// The limit of each output stream, in bytes.
    pub const MAX_ANSWER: usize = 1 << 20;
    /// The limit of standard input. It fits the servers' window, so that sending never blocks.
    pub const MAX_STDIN: usize = 1 << 20;

    /// Runs a command in the user's login shell and waits for its end. For probes, not for work:
    /// after `answer-lost` or `step-timeout` it may have had its effect.
    pub async fn run(&self, command: &str, stdin: &[u8], limit: Duration) -> Result<Output> {
        self.call(command, stdin.to_vec(), limit).await.map_err(CallError::into_change_fault)
    }

    pub(super) async fn call(
        &self,
        command: &str,
        stdin: Vec<u8>,
        limit: Duration,
    ) -> Result<Output, CallError> {
        let (handle, position) =
            self.last_hop().map_err(|fault| CallError::Unsent(fault.message))?;
        if stdin.len() > Self::MAX_STDIN {
            return Err(CallError::Refused(format!(
                "{position} can be told {} bytes at most",
                Self::MAX_STDIN
            )));
        }
        let opened = timeout(self.settings.call_timeout, handle.channel_open_session()).await;
        let unsent = |why: &dyn std::fmt::Display| {
            CallError::Unsent(format!("{position} opened no session: {why}"))
        };
        let channel =
            opened.map_err(|_| unsent(&"it did not answer"))?.map_err(|error| unsent(&error))?;
        let (mut reader, session) = Session::split(channel);
        match timeout(limit, session.run_command(&mut reader, command, stdin)).await {
            Err(_) => Err(CallError::TimedOut(format!(
                "{position} did not finish within {} s",
                limit.as_secs_f32()
            ))),
            Ok(Ok(output)) => Ok(output),
            Ok(Err(SessionError::Disconnected)) => {
                Err(CallError::Lost(format!("{position} was lost before it had answered")))
            }
            Ok(Err(SessionError::Denied)) => {
                Err(CallError::Unsent(format!("{position} runs no commands for this user")))
            }
            Ok(Err(SessionError::TooLong)) => Err(CallError::TooLong(format!(
                "{position} answered more than {} bytes",
                Self::MAX_ANSWER
            ))),
        }
    }
}

enum SessionError {
    Disconnected,
    Denied,
    TooLong,
}

/// The sending half of a channel. It is closed on drop, also when a future was cancelled, because
/// servers allow few sessions on one connection.
struct Session(Option<ChannelWriteHalf<Msg>>);

impl Session {
    fn split(channel: Channel<Msg>) -> (ChannelReadHalf, Self) {
        let (reader, writer) = channel.split();
        (reader, Self(Some(writer)))
    }

    async fn run_command(
        &self,
        reader: &mut ChannelReadHalf,
        command: &str,
        stdin: Vec<u8>,
    ) -> Result<Output, SessionError> {
        let Some(writer) = &self.0 else { return Err(SessionError::Disconnected) };
        writer.exec(true, command).await.map_err(|_| SessionError::Disconnected)?;
        if !stdin.is_empty() {
            writer.data_bytes(stdin).await.map_err(|_| SessionError::Disconnected)?;
        }
        writer.eof().await.map_err(|_| SessionError::Disconnected)?;
        read_output(reader).await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (Some(writer), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        // Best effort: on a broken connection nothing needs closing.
        drop(runtime.spawn(async move { writer.close().await }));
    }
}

/// Reads until the server reports the exit. A channel that closes without it was disconnected.
async fn read_output(reader: &mut ChannelReadHalf) -> Result<Output, SessionError> {
    let mut output = Output::default();
    let mut ended = false;
    while let Some(message) = reader.wait().await {
        #[expect(clippy::wildcard_enum_match_arm, reason = "russh may add messages")]
        match message {
            ChannelMsg::Data { data } => take(&mut output.stdout, &data)?,
            ChannelMsg::ExtendedData { data, ext } if ext == STDERR => {
                take(&mut output.stderr, &data)?
            }
            ChannelMsg::ExitStatus { exit_status } => {
                (output.status, ended) = (Some(exit_status), true)
            }
            ChannelMsg::ExitSignal { .. } => ended = true,
            ChannelMsg::Failure => return Err(SessionError::Denied),
            ChannelMsg::Close => break,
            // Messages about windows and the like do not concern the command.
            _ => {}
        }
    }
    if ended { Ok(output) } else { Err(SessionError::Disconnected) }
}

fn take(stored: &mut Vec<u8>, data: &[u8]) -> Result<(), SessionError> {
    if stored.len() + data.len() > Host::MAX_ANSWER {
        return Err(SessionError::TooLong);
    }
    stored.extend_from_slice(data);
    Ok(())
}
