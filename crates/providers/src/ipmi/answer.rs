//! Classification of `ipmitool` output. The program has one exit code for all errors, so its few
//! fixed phrases are parsed here. The completion codes are those of the IPMI specification.

use super::tool::Ending;
use model::fault::Code;

/// Why a request has no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The BMC refused the user or the requested privilege.
    Login(String),
    NoSuite(String),
    /// No session was opened, so nothing was sent.
    Unreached(String),
    /// The request was sent without a response.
    Unanswered,
    /// The BMC refused with a completion code.
    Refused(u8),
    Garbled(String),
    NoTool(String),
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
const CHATTER: [&str; 3] = ["Loading IANA", "Running Get", "Discovered IPMB"];

/// The output of one request, or why there is none.
pub fn judge(ending: Ending) -> Result<String, Trouble> {
    let (ok, out, err) = ended(ending)?;
    if let Some(line) = err.lines().find(|line| line.starts_with(NO_ANSWER)) {
        return Err(completion(line).map_or(Trouble::Unanswered, Trouble::Refused));
    }
    if ok { Ok(out) } else { Err(Trouble::Garbled(last_words(&err))) }
}

/// The output of several requests, of which some may have been refused.
pub fn judge_many(ending: Ending) -> Result<String, Trouble> {
    let (_, out, err) = ended(ending)?;
    let lost = |line: &str| line.starts_with(NO_ANSWER) && completion(line).is_none();
    if err.lines().any(lost) { Err(Trouble::Unanswered) } else { Ok(out) }
}

fn ended(ending: Ending) -> Result<(bool, String, String), Trouble> {
    match ending {
        Ending::Late => Err(Trouble::Unanswered),
        Ending::NotRun(said) => Err(Trouble::NoTool(said)),
        Ending::Ended { err, .. } if err.contains(NO_SESSION) => Err(no_session(&err)),
        Ending::Ended { ok, out, err } => Ok((ok, out, err)),
    }
}

fn no_session(err: &str) -> Trouble {
    let named = |phrases: &[&str]| {
        err.lines().find(|line| phrases.iter().any(|phrase| line.contains(phrase))).map(tidy)
    };
    if let Some(line) = named(&SUITE) {
        return Trouble::NoSuite(line);
    }
    if let Some(line) = named(&LOGIN) {
        return Trouble::Login(line);
    }
    Trouble::Unreached(last_words(err))
}

/// Whether the BMC itself refused the cipher suite. A missing response does not count: an attacker
/// that drops packets must not be able to force the weaker suite.
pub fn lacks_suite(ending: &Ending) -> bool {
    match ending {
        Ending::Ended { err, .. } => {
            err.contains(NO_SESSION) && matches!(no_session(err), Trouble::NoSuite(_))
        }
        Ending::Late | Ending::NotRun(_) => false,
    }
}

/// Whether the BMC responded within a session, even with a refusal.
pub fn had_session(ending: &Ending) -> bool {
    match ending {
        Ending::Ended { ok, err, .. } => *ok || err.lines().any(|line| completion(line).is_some()),
        Ending::Late | Ending::NotRun(_) => false,
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
fn last_words(err: &str) -> String {
    let tells = |line: &&str| {
        !line.trim().is_empty()
            && !line.contains(NO_SESSION)
            && !CHATTER.iter().any(|chatter| line.starts_with(chatter))
    };
    err.lines().rfind(tells).map_or_else(|| "no answer from that address".to_owned(), tidy)
}

/// Parses the hexadecimal bytes that the program printed.
pub fn bytes(out: &str) -> Result<Vec<u8>, Trouble> {
    out.split_whitespace()
        .map(|word| {
            let digits = word.len() == 2 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            if digits { u8::from_str_radix(word, 16).ok() } else { None }
        })
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| Trouble::Garbled(out.chars().take(80).collect()))
}

pub fn script_line(bytes: &[u8]) -> String {
    let words: String = bytes.iter().map(|byte| format!(" {byte:#04x}")).collect();
    format!("raw{words}\n")
}

/// The fault code for a completion code.
pub fn refusal(completion: u8, changes: bool) -> Code {
    match completion {
        // The command, parameter or sensor does not exist.
        0x80 | 0xc1 | 0xc2 | 0xc7 | 0xc9 | 0xcb | 0xcc | 0xcd => Code::NotSupported,
        0xd4 => Code::LoginRefused,
        // The change started, with an unknown result.
        0xc3 | 0xce if changes => Code::AnswerLost,
        _ => Code::EffectFailed,
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

    fn ending(ok: bool, out: &str, err: &str) -> Ending {
        Ending::Ended { ok, out: out.to_owned(), err: err.to_owned() }
    }

    fn no_session_after(said: &str) -> Ending {
        ending(false, "", &format!("Loading IANA PEN Registry...\n{said}\nError: {NO_SESSION}\n"))
    }

    #[test]
    fn every_way_to_get_no_session_is_told_apart() {
        let login = [
            "> RAKP 2 HMAC is invalid",
            "RAKP 2 message indicates an error : unauthorized name",
            "RAKP 4 message indicates an error : invalid integrity check value",
        ];
        for said in login {
            let trouble = judge(no_session_after(said)).unwrap_err();
            assert!(matches!(trouble, Trouble::Login(_)), "{said}: {trouble:?}");
            assert!(!lacks_suite(&no_session_after(said)));
        }
        let suite = "Error in open session response message : invalid authentication algorithm\n";
        assert!(matches!(judge(no_session_after(suite)), Err(Trouble::NoSuite(_))));
        assert!(lacks_suite(&no_session_after(suite)));
        let silent = "Get Auth Capabilities error";
        let unreached = Trouble::Unreached(silent.to_owned());
        assert_eq!(judge(no_session_after(silent)), Err(unreached.clone()));
        assert_eq!(judge_many(no_session_after(silent)), Err(unreached));
        assert!(!lacks_suite(&no_session_after(silent)) && !had_session(&no_session_after(silent)));
        let full = "RAKP 2 message indicates an error : insufficient resources for session";
        assert!(matches!(judge(no_session_after(full)), Err(Trouble::Unreached(_))));
        let Err(Trouble::Unreached(said)) = judge(no_session_after("")) else { panic!() };
        assert_eq!(said, "no answer from that address");
    }

    #[test]
    fn a_refusal_has_its_code_and_silence_has_none() {
        let line = "Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2";
        let refused = format!("{line} rsp=0xd4): Insufficient privilege level\n");
        assert_eq!(judge(ending(false, "", &refused)), Err(Trouble::Refused(0xd4)));
        let silent = format!("{line})\nClose Session command failed\n");
        assert_eq!(judge(ending(false, "", &silent)), Err(Trouble::Unanswered));
        assert_eq!(judge_many(ending(false, " 01", &refused)), Ok(" 01".to_owned()));
        assert_eq!(judge_many(ending(false, " 01", &silent)), Err(Trouble::Unanswered));
        assert_eq!(judge(Ending::Late), Err(Trouble::Unanswered));
        assert!(had_session(&ending(false, "", &refused)) && had_session(&ending(true, " 01", "")));
        assert!(!had_session(&ending(false, "", &silent)) && !had_session(&Ending::Late));
        let other = judge(ending(false, "", "Invalid parameter\n"));
        assert_eq!(other, Err(Trouble::Garbled("Invalid parameter".into())));
    }

    #[test]
    fn only_hexadecimal_is_an_answer() {
        assert_eq!(bytes(" 01 ff\n 0a\n"), Ok(vec![0x01, 0xff, 0x0a]));
        assert_eq!(bytes("\n"), Ok(vec![]));
        for odd in ["1", "001", "zz", "01 <html>", "+1"] {
            assert!(matches!(bytes(odd), Err(Trouble::Garbled(_))), "{odd}");
        }
        assert_eq!(script_line(&[0x0a, 0x43]), "raw 0x0a 0x43\n");
    }

    #[test]
    fn only_a_change_can_be_lost() {
        for completion in 0x01..=0xff {
            assert_ne!(refusal(completion, false), Code::AnswerLost);
            assert!(!meaning(completion).is_empty());
        }
        assert_eq!(refusal(0xc3, true), Code::AnswerLost);
        assert_eq!(refusal(0xd5, true), Code::EffectFailed);
        assert_eq!(refusal(0xd4, true), Code::LoginRefused);
        assert_eq!(refusal(0xc1, true), Code::NotSupported);
    }
}
