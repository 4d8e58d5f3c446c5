//! How a command ends: the exit codes, and what is said on the way out.
//!
//! Scripts decide by the code and people by the text, so both are made here and nowhere else. The
//! codes are a promise: `farrier --help` lists them.

use crate::text::printable;
use std::process::ExitCode;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// What the process returns to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// The operation ended FAILED or CANCELED.
    OperationEnded,
    /// The server refused the request, or the command line makes no sense.
    Refused,
    /// The wait ended before the operation did.
    TimedOut,
    /// No server answered, or it cannot work at the moment.
    Unreachable,
    /// Something that should not happen.
    Bug,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::OperationEnded => 1,
            Exit::Refused => 2,
            Exit::TimedOut => 3,
            Exit::Unreachable => 4,
            Exit::Bug => 5,
            Exit::Interrupted => 130,
        }
    }

    /// The exit code for a gRPC code.
    pub fn of(code: Code) -> Self {
        match code {
            Code::Ok => Exit::Done,
            Code::InvalidArgument
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated => Exit::Refused,
            // Both say: try again.
            Code::Unavailable | Code::Aborted => Exit::Unreachable,
            Code::DeadlineExceeded => Exit::TimedOut,
            Code::Cancelled
            | Code::Unknown
            | Code::ResourceExhausted
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss => Exit::Bug,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// Why a command stopped early.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// For stderr, after `error: `. Empty: nothing is said.
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// What was typed cannot be done.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(Exit::Bug, message)
    }

    /// Says it on stderr and gives the exit code.
    pub fn report(&self) -> Exit {
        if !self.message.is_empty() {
            eprintln_quietly(&format!("error: {}", self.message));
        }
        self.exit
    }
}

/// A line on stderr. A closed stderr is no reason to fail.
pub fn eprintln_quietly(line: &str) {
    eprint_quietly(&format!("{line}\n"));
}

/// The same without an end of line.
pub fn eprint_quietly(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            // The reader of a pipe has seen enough.
            return Self::new(Exit::Done, "");
        }
        Self::bug(format!("cannot write the output: {error}"))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::new(Exit::of(status.code()), describe(&status))
    }
}

/// The server's message, the fields it names, and the command it proposes, each said once.
fn describe(status: &Status) -> String {
    let details = status.get_error_details();
    let next = details.error_info().and_then(|info| info.metadata.get("next"));
    let mut message = status.message();
    if let Some(next) = next {
        // For clients that show nothing else, the message ends with the command too.
        message = message.strip_suffix(&format!("; try: {next}")).unwrap_or(message);
    }
    let first = if message.is_empty() { status.code().description() } else { message };
    let mut lines = vec![printable(first).into_owned()];
    if let Some(bad) = details.bad_request() {
        let new = bad.field_violations.iter().filter(|one| !message.contains(&one.description));
        lines.extend(new.map(|violation| {
            let field = printable(&violation.field);
            format!("  field {field}: {}", printable(&violation.description))
        }));
    }
    lines.extend(next.map(|next| format!("next: {}", printable(next))));
    if let Some(help) = details.help() {
        lines.extend(help.links.iter().map(|link| {
            let words = [link.description.as_str(), link.url.as_str()];
            let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
            format!("next: {}", printable(&words.join("  ")))
        }));
    }
    // The same command may be in two kinds of details.
    lines.dedup();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use tonic_types::ErrorDetails;

    #[test]
    fn grpc_codes_have_documented_exit_codes() {
        for (code, exit) in [
            (Code::InvalidArgument, 2),
            (Code::NotFound, 2),
            (Code::FailedPrecondition, 2),
            (Code::AlreadyExists, 2),
            (Code::PermissionDenied, 2),
            (Code::Unauthenticated, 2),
            (Code::DeadlineExceeded, 3),
            (Code::Unavailable, 4),
            (Code::Internal, 5),
            (Code::Unknown, 5),
            (Code::Unimplemented, 5),
        ] {
            assert_eq!(Exit::of(code).code(), exit, "{code:?}");
        }
        assert_eq!(Exit::OperationEnded.code(), 1);
        assert_eq!(Exit::Interrupted.code(), 130);
    }

    #[test]
    fn details_name_the_field_and_the_next_command() {
        let mut details = ErrorDetails::new();
        details.add_bad_request_violation("machine.spec.ssh_endpoint", "has a malformed port");
        let metadata = HashMap::from([("next".to_string(), "farrier get machine-1".to_string())]);
        details.set_error_info("INVALID", "farrier", metadata);
        details.add_help_link("farrier get machine-1", "");
        let status = Status::with_error_details(
            Code::InvalidArgument,
            "a bad\u{7} machine; try: farrier get machine-1",
            details,
        );
        let failure = Failure::from(status);
        assert_eq!(failure.exit, Exit::Refused);
        assert_eq!(
            failure.message,
            "a bad\\x07 machine\n  field machine.spec.ssh_endpoint: has a malformed port\n\
             next: farrier get machine-1"
        );
    }

    #[test]
    fn a_caret_line_is_printed_verbatim() {
        let said = "the filter has no such field\n  phas=READY\n  ^^^^";
        assert_eq!(Failure::from(Status::invalid_argument(said)).message, said);
    }

    #[test]
    fn a_broken_pipe_is_no_error() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Done, ""));
    }
}
