//! Classification of `ipmitool` output. The program has one exit code for all errors, so its few
//! fixed phrases are parsed here. The completion codes are those of the IPMI specification.

use super::tool::ToolResult;
use crate::fault::LocalShortage;
use model::fault::{Fault, FaultCode};

/// The reason why a request has no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpmiError {
    /// The address may not be contacted, or is unknown.
    NotSent(Fault),
    /// The BMC refused the user or the requested privilege.
    LoginRefused(String),
    CipherRefused(String),
    /// No session was opened, so nothing was sent.
    NoSession(String),
    /// The request was sent without a response.
    NoResponse,
    /// The BMC refused with a completion code.
    Refused(u8),
    Garbled(String),
    ToolNotRun(String),
    NoResources(LocalShortage),
}

const NO_SESSION: &str = "Unable to establish IPMI v2 / RMCP+ session";
const NO_ANSWER: &str = "Unable to send RAW command";
/// The phrases for the session status codes that mean a refused login.
const LOGIN: [&str; 6] = [
    "HMAC is invalid",
    "unauthorized name",
    "unauthorized role requested",
    "invalid role",
    "invalid integrity check value",
    "Set Session Privilege Level to",
];
const SUITE: [&str; 7] = [
    "invalid authentication algorithm",
    "invalid integrity algorithm",
    "invalid confidentiality algorithm",
    "no matching authentication algorithm",
    "no matching integrity payload",
    "no matching cipher suite",
    "Unsupported cipher suite ID",
];
/// Progress lines without information.
const PROGRESS_LINES: [&str; 3] = ["Loading IANA", "Running Get", "Discovered IPMB"];

/// The output of one request, or why there is none.
pub fn classify(ending: ToolResult) -> Result<String, IpmiError> {
    let (ok, out, err) = ended(ending)?;
    if let Some(line) = err.lines().find(|line| line.starts_with(NO_ANSWER)) {
        return Err(completion(line).map_or(IpmiError::NoResponse, IpmiError::Refused));
    }
    if ok { Ok(out) } else { Err(IpmiError::Garbled(last_message(&err))) }
}

/// The output of several requests, of which some may have been refused.
pub fn classify_batch(ending: ToolResult) -> Result<String, IpmiError> {
    let (_, out, err) = ended(ending)?;
    let lost = |line: &str| line.starts_with(NO_ANSWER) && completion(line).is_none();
    if err.lines().any(lost) { Err(IpmiError::NoResponse) } else { Ok(out) }
}

fn ended(ending: ToolResult) -> Result<(bool, String, String), IpmiError> {
    match ending {
        ToolResult::TimedOut => Err(IpmiError::NoResponse),
        ToolResult::NotRun(message) => Err(IpmiError::ToolNotRun(message)),
        ToolResult::NoResources(shortage) => Err(IpmiError::NoResources(shortage)),
        ToolResult::Exited { err, .. } if err.contains(NO_SESSION) => Err(no_session(&err)),
        ToolResult::Exited { ok, out, err } => Ok((ok, out, err)),
    }
}

fn no_session(err: &str) -> IpmiError {
    let named = |phrases: &[&str]| {
        err.lines().find(|line| phrases.iter().any(|phrase| line.contains(phrase))).map(tidy)
    };
    if let Some(line) = named(&SUITE) {
        return IpmiError::CipherRefused(line);
    }
    if let Some(line) = named(&LOGIN) {
        return IpmiError::LoginRefused(line);
    }
    IpmiError::NoSession(last_message(err))
}

/// True if the BMC itself refused the cipher suite. A missing response does not count: an attacker
/// that drops packets must not be able to force the weaker suite.
pub fn lacks_suite(ending: &ToolResult) -> bool {
    match ending {
        ToolResult::Exited { err, .. } => {
            err.contains(NO_SESSION) && matches!(no_session(err), IpmiError::CipherRefused(_))
        }
        ToolResult::TimedOut | ToolResult::NotRun(_) | ToolResult::NoResources(_) => false,
    }
}

/// True if the BMC responded within a session, even with a refusal.
pub fn had_session(ending: &ToolResult) -> bool {
    match ending {
        ToolResult::Exited { ok, err, .. } => {
            *ok || err.lines().any(|line| completion(line).is_some())
        }
        ToolResult::TimedOut | ToolResult::NotRun(_) | ToolResult::NoResources(_) => false,
    }
}

fn completion(line: &str) -> Option<u8> {
    let (_, rest) = line.split_once("rsp=0x")?;
    u8::from_str_radix(rest.get(..2)?, 16).ok()
}

fn tidy(line: &str) -> String {
    line.trim_start_matches('>').trim().to_owned()
}

/// The last informative line.
fn last_message(err: &str) -> String {
    let tells = |line: &&str| {
        !line.trim().is_empty()
            && !line.contains(NO_SESSION)
            && !PROGRESS_LINES.iter().any(|chatter| line.starts_with(chatter))
    };
    err.lines().rfind(tells).map_or_else(|| "no answer from that address".to_owned(), tidy)
}

/// Parses the hexadecimal bytes that the program printed.
pub fn bytes(out: &str) -> Result<Vec<u8>, IpmiError> {
    out.split_whitespace()
        .map(|name| {
            let digits = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if digits { u8::from_str_radix(name, 16).ok() } else { None }
        })
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| IpmiError::Garbled(out.chars().take(80).collect()))
}

pub fn script_line(bytes: &[u8]) -> String {
    let words: String = bytes.iter().map(|byte| format!(" {byte:#04x}")).collect();
    format!("raw{words}\n")
}

/// The fault code for a completion code.
pub fn refusal(completion: u8, changes: bool) -> FaultCode {
    match completion {
        // The command, parameter or sensor does not exist.
        0x80 | 0xc1 | 0xc2 | 0xc7 | 0xc9 | 0xcb | 0xcc | 0xcd => FaultCode::NotSupported,
        0xd4 => FaultCode::LoginRefused,
        // The change started, with an unknown result.
        0xc3 | 0xce if changes => FaultCode::AnswerLost,
        _ => FaultCode::EffectFailed,
    }
}

pub fn meaning(completion: u8) -> String {
    let words = match completion {
        0x80 => "does not have that parameter",
        0xc0 => "is busy",
        0xc1 | 0xc2 => "does not know that command",
        0xc3 => "took too long itself",
        0xc7 | 0xc9 | 0xcc => "does not take these values",
        0xcb => "has no such record",
        0xce => "could not give an answer",
        0xd0..=0xd2 => "is starting up or updating itself",
        0xd4 => "does not allow that to this user, who needs a higher privilege",
        0xd5 | 0xd6 => "cannot do that in its present state",
        0xff => "failed and does not say why",
        _ => "refused",
    };
    format!("{words} (completion code {completion:#04x})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(ok: bool, out: &str, err: &str) -> ToolResult {
        ToolResult::Exited { ok, out: out.to_owned(), err: err.to_owned() }
    }

    fn no_session_after(message: &str) -> ToolResult {
        ending(
            false,
            "",
            &format!("Loading IANA PEN Registry...\n{message}\nError: {NO_SESSION}\n"),
        )
    }

    #[test]
    fn session_errors_are_distinguished() {
        let login = [
            "> RAKP 2 HMAC is invalid",
            "RAKP 2 message indicates an error : unauthorized name",
            "RAKP 4 message indicates an error : invalid integrity check value",
        ];
        for message in login {
            let failure = classify(no_session_after(message)).unwrap_err();
            assert!(matches!(failure, IpmiError::LoginRefused(_)), "{message}: {failure:?}");
            assert!(!lacks_suite(&no_session_after(message)));
        }
        let suite = "Error in open session response message : invalid authentication algorithm\n";
        assert!(matches!(classify(no_session_after(suite)), Err(IpmiError::CipherRefused(_))));
        assert!(lacks_suite(&no_session_after(suite)));
        let silent = "Get Auth Capabilities error";
        let unreached = IpmiError::NoSession(silent.to_owned());
        assert_eq!(classify(no_session_after(silent)), Err(unreached.clone()));
        assert_eq!(classify_batch(no_session_after(silent)), Err(unreached));
        assert!(!lacks_suite(&no_session_after(silent)) && !had_session(&no_session_after(silent)));
        let full = "RAKP 2 message indicates an error : insufficient resources for session";
        assert!(matches!(classify(no_session_after(full)), Err(IpmiError::NoSession(_))));
        let Err(IpmiError::NoSession(message)) = classify(no_session_after("")) else { panic!() };
        assert_eq!(message, "no answer from that address");
    }

    #[test]
    fn only_a_refusal_has_a_completion_code() {
        let line = "Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2";
        let refused = format!("{line} rsp=0xd4): Insufficient privilege level\n");
        assert_eq!(classify(ending(false, "", &refused)), Err(IpmiError::Refused(0xd4)));
        let silent = format!("{line})\nClose Session command failed\n");
        assert_eq!(classify(ending(false, "", &silent)), Err(IpmiError::NoResponse));
        assert_eq!(classify_batch(ending(false, " 01", &refused)), Ok(" 01".to_owned()));
        assert_eq!(classify_batch(ending(false, " 01", &silent)), Err(IpmiError::NoResponse));
        assert_eq!(classify(ToolResult::TimedOut), Err(IpmiError::NoResponse));
        assert!(had_session(&ending(false, "", &refused)) && had_session(&ending(true, " 01", "")));
        assert!(!had_session(&ending(false, "", &silent)) && !had_session(&ToolResult::TimedOut));
        let other = classify(ending(false, "", "Invalid parameter\n"));
        assert_eq!(other, Err(IpmiError::Garbled("Invalid parameter".into())));
    }

    #[test]
    fn only_hexadecimal_is_an_answer() {
        assert_eq!(bytes(" 01 ff\n 0a\n"), Ok(vec![0x01, 0xff, 0x0a]));
        assert_eq!(bytes("\n"), Ok(vec![]));
        for odd in ["1", "001", "zz", "01 <html>", "+1"] {
            assert!(matches!(bytes(odd), Err(IpmiError::Garbled(_))), "{odd}");
        }
        assert_eq!(script_line(&[0x0a, 0x43]), "raw 0x0a 0x43\n");
    }

    #[test]
    fn only_a_change_can_be_lost() {
        for completion in 0x01..=0xff {
            assert_ne!(refusal(completion, false), FaultCode::AnswerLost);
            assert!(!meaning(completion).is_empty());
        }
        assert_eq!(refusal(0xc3, true), FaultCode::AnswerLost);
        assert_eq!(refusal(0xd5, true), FaultCode::EffectFailed);
        assert_eq!(refusal(0xd4, true), FaultCode::LoginRefused);
        assert_eq!(refusal(0xc1, true), FaultCode::NotSupported);
    }
}
