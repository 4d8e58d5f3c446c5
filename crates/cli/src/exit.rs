//! Exit codes and error messages.
//!
//! Scripts read the code and people read the text. Both are defined only here. The codes are
//! stable; `farrier --help` lists them.

use crate::output::Format;
use crate::text::printable;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The reason of a request that needs a second person, and its metadata.
const APPROVAL_REQUIRED: &str = "APPROVAL_REQUIRED";
const APPROVAL_ID: &str = "approval_id";
const REQUEST_ID: &str = "request_id";

/// The exit status of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// The operation ended FAILED or CANCELED, or a check found a problem.
    Unsuccessful,
    /// The server refused the request, or the command line is invalid.
    Refused,
    /// The wait ended before the operation did.
    TimedOut,
    /// No server answered, or the server is unavailable.
    Unreachable,
    /// A bug in Farrier.
    Bug,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Unsuccessful => 1,
            Exit::Refused => 2,
            Exit::TimedOut => 3,
            Exit::Unreachable => 4,
            Exit::Bug => 5,
            Exit::Interrupted => 130,
        }
    }

    /// Maps a gRPC code to an exit code.
    pub fn from_grpc_code(code: Code) -> Self {
        match code {
            Code::Ok => Exit::Success,
            Code::InvalidArgument
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::PermissionDenied
            | Code::Unauthenticated => Exit::Refused,
            // For both codes the caller can try again.
            Code::Unavailable | Code::Aborted => Exit::Unreachable,
            Code::DeadlineExceeded => Exit::TimedOut,
            Code::Cancelled
            | Code::Unknown
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

/// The result of a command or of a part of it.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason why a command stopped early.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// Printed on stderr after `error: `. Nothing is printed if it is empty.
    pub message: String,
    /// The server's own error, for programs.
    status: Option<Box<Status>>,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), status: None }
    }

    /// A request that is invalid as typed.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(Exit::Bug, message)
    }

    /// Adds the command that starts the request after its approval. `arguments` are those of this
    /// process.
    #[must_use]
    pub fn with_repetition(mut self, arguments: impl Iterator<Item = String>) -> Self {
        let info = self
            .status
            .as_ref()
            .and_then(|status| status.get_error_details().error_info().cloned());
        let Some(info) = info.filter(|info| info.reason == APPROVAL_REQUIRED) else { return self };
        let Some(request_id) = info.metadata.get(REQUEST_ID) else { return self };
        let command = repetition(arguments, request_id);
        self.message = format!("{}\nafterwards: {}", self.message, printable(&command));
        self
    }

    /// True if the server does not offer the call.
    pub fn is_unimplemented(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.code() == Code::Unimplemented)
    }

    /// Prints the message on stderr and returns the exit code.
    pub fn report(&self, format: Format) -> Exit {
        if !self.message.is_empty() {
            eprintln_quietly(&match format {
                Format::Table | Format::Wide => format!("error: {}", self.message),
                // YAML contains JSON.
                Format::Json | Format::Jsonl | Format::Yaml => self.form().to_string(),
            });
        }
        self.exit
    }

    /// The error for programs. docs/output.md documents it.
    fn form(&self) -> Value {
        let mut error = Map::new();
        let mut add = |name: &str, value: Value| error.insert(name.into(), value);
        add("exit_code", self.exit.code().into());
        let Some(status) = &self.status else {
            add("message", self.message.clone().into());
            return json!({ "error": error });
        };
        add("code", code_name(status.code()).into());
        add("message", status.message().into());
        let details = status.get_error_details();
        if let Some(info) = details.error_info() {
            add("reason", info.reason.clone().into());
            if let Some(gate) = info.metadata.get("gate") {
                add("gate", gate.clone().into());
            }
            if let Some(next) = info.metadata.get("next") {
                add("next_command", next.clone().into());
            }
            for name in [APPROVAL_ID, REQUEST_ID] {
                if let Some(value) = info.metadata.get(name) {
                    add(name, value.clone().into());
                }
            }
        }
        if let Some(bad) = details.bad_request() {
            let violations = bad.field_violations.iter();
            let fields = violations
                .map(|one| json!({ "field": one.field, "message": one.description }))
                .collect();
            add("fields", Value::Array(fields));
        }
        if let Some(delay) = details.retry_info().and_then(|retry| retry.retry_delay) {
            let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            add("retry_delay_ms", delay_ms.into());
        }
        json!({ "error": error })
    }
}

/// The command line of this process with the request id of an approval.
fn repetition(arguments: impl Iterator<Item = String>, request_id: &str) -> String {
    const FLAG: &str = "--request-id";
    let mut words = vec!["farrier".to_string()];
    let mut arguments = arguments.skip(1).peekable();
    while let Some(argument) = arguments.next() {
        if argument == FLAG {
            arguments.next();
        } else if !argument.starts_with("--request-id=") {
            words.push(shell_word(&argument));
        }
    }
    if !request_id.is_empty() {
        words.extend([FLAG.to_string(), shell_word(request_id)]);
    }
    words.join(" ")
}

/// The argument as a shell reads it back.
fn shell_word(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !argument.is_empty() && argument.chars().all(plain) {
        true => argument.to_string(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}

/// The name of a gRPC code, as the protocol's documents write it.
const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Prints a line on stderr. Errors are ignored: a closed stderr must not fail the command.
pub fn eprintln_quietly(line: &str) {
    eprint_quietly(&format!("{line}\n"));
}

/// Like `eprintln_quietly`, without a line end.
pub fn eprint_quietly(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            // The reader of the pipe has closed it, as `head` does.
            return Self::new(Exit::Success, "");
        }
        Self::bug(format!("cannot write the output: {error}"))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self {
            exit: Exit::from_grpc_code(status.code()),
            message: describe_status(&status),
            status: Some(Box::new(status)),
        }
    }
}

/// Joins the server's message, the fields it names, and the command it proposes, without repeats.
fn describe_status(status: &Status) -> String {
    let details = status.get_error_details();
    let next = details.error_info().and_then(|info| info.metadata.get("next"));
    let mut message = status.message();
    if let Some(next) = next {
        // The message also ends with the command, for clients that ignore error details.
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
            let words: Vec<_> = words.into_iter().filter(|name| !name.is_empty()).collect();
            format!("next: {}", printable(&words.join("  ")))
        }));
    }
    // The same command may be in two kinds of details.
    lines.dedup();
    lines.join("\n")
}

/// Prints the help, or the error of a command line that cannot be parsed: in the format that the
/// line asks for.
pub fn report_usage(error: &clap::Error, arguments: impl Iterator<Item = String>) -> Exit {
    if !error.use_stderr() {
        // A reader that closes the pipe is no failure.
        let _ = error.print();
        return Exit::Success;
    }
    match requested_format(arguments) {
        Format::Table | Format::Wide => {
            let _ = error.print();
            Exit::Refused
        }
        format @ (Format::Json | Format::Jsonl | Format::Yaml) => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Failure::refused(text.trim_end()).report(format)
        }
    }
}

/// The value of `-o` or `--output`; a value that is not known counts as a table.
fn requested_format(arguments: impl Iterator<Item = String>) -> Format {
    let mut format = None;
    let mut is_value = false;
    for argument in arguments {
        let value = match argument.as_str() {
            value if is_value => Some(value),
            long if long.starts_with("--") => long.strip_prefix("--output="),
            short => short.strip_prefix("-o").filter(|value| !value.is_empty()),
        };
        let value = value.map(|value| value.trim_start_matches('='));
        format = value.and_then(|value| Format::from_str(value, true).ok()).or(format);
        is_value = !is_value && (argument == "-o" || argument == "--output");
    }
    format.unwrap_or_default()
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
            assert_eq!(Exit::from_grpc_code(code).code(), exit, "{code:?}");
        }
        assert_eq!(Exit::Unsuccessful.code(), 1);
        assert_eq!(Exit::Interrupted.code(), 130);
    }

    #[test]
    fn programs_get_an_error_as_json() {
        let mut details = ErrorDetails::new();
        details.add_bad_request_violation("request_id", "is missing");
        let metadata = [("next", "farrier list"), ("gate", "health")];
        let metadata = metadata.map(|(key, value)| (key.to_string(), value.to_string()));
        details.set_error_info("FIELD_MISSING", "farrier", HashMap::from(metadata));
        details.set_retry_info(Some(std::time::Duration::from_millis(100)));
        let status = Status::with_error_details(Code::InvalidArgument, "no", details);
        assert_eq!(
            Failure::from(status).form().to_string(),
            r#"{"error":{"code":"INVALID_ARGUMENT","exit_code":2,"fields":[{"field":"request_id","message":"is missing"}],"gate":"health","message":"no","next_command":"farrier list","reason":"FIELD_MISSING","retry_delay_ms":100}}"#
        );
        assert_eq!(
            Failure::refused("no file").form().to_string(),
            r#"{"error":{"exit_code":2,"message":"no file"}}"#
        );
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
    fn a_request_that_needs_an_approval_says_how_it_is_repeated() {
        for (line, expected) in [
            (&["reimage", "m-1"][..], "farrier reimage m-1 --request-id r-1"),
            (&["reimage", "m-1", "--request-id", "old"], "farrier reimage m-1 --request-id r-1"),
            (&["reimage", "--request-id=old", "m-1"], "farrier reimage m-1 --request-id r-1"),
            (
                &["start", "--param", "text=it's"],
                r"farrier start --param 'text=it'\''s' --request-id r-1",
            ),
        ] {
            let arguments = ["/bin/farrier"].iter().chain(line).map(|one| one.to_string());
            assert_eq!(repetition(arguments, "r-1"), expected);
        }
        let mut details = ErrorDetails::new();
        let metadata = HashMap::from([(REQUEST_ID.to_string(), "r-1".to_string())]);
        details.set_error_info(APPROVAL_REQUIRED, "farrier", metadata);
        let status = Status::with_error_details(Code::FailedPrecondition, "no", details);
        let arguments = ["farrier", "reboot", "m-1"].iter().map(|one| one.to_string());
        let failure = Failure::from(status).with_repetition(arguments);
        assert_eq!(failure.message, "no\nafterwards: farrier reboot m-1 --request-id r-1");
    }

    #[test]
    fn a_caret_line_is_printed_verbatim() {
        let message = "the filter has no such field\n  phas=READY\n  ^^^^";
        assert_eq!(Failure::from(Status::invalid_argument(message)).message, message);
    }

    #[test]
    fn a_broken_pipe_is_no_error() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Success, ""));
    }

    #[test]
    fn the_format_of_a_line_that_cannot_be_parsed_is_known() {
        for (line, expected) in [
            ("farrier lst", Format::Table),
            ("farrier lst -o json", Format::Json),
            ("farrier -ojson lst", Format::Json),
            ("farrier lst -o=yaml", Format::Yaml),
            ("farrier --output yaml lst", Format::Yaml),
            ("farrier --output=json lst", Format::Json),
            ("farrier lst -o xml", Format::Table),
            ("farrier lst -o", Format::Table),
        ] {
            let arguments = line.split(' ').map(str::to_string);
            assert_eq!(requested_format(arguments), expected, "{line}");
        }
    }
}
