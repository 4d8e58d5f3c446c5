//! The way to Farrier: one function for each thing that can be asked of it, and what an answer means.
//!
//! Whatever may pass is tried again by whoever asked: Farrier may be killed and started again at any moment. Only a plain
//! refusal is final.

use crate::console::say;
use crate::http::{Body, Client, Request, Response, Url};
use crate::image::Source;
use crate::pace::{Pace, Pauses};
use crate::status::{End, Status};
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::Refusal;
use wire::deploy::{self, Assignment, Claim, Image, Report, ReportReply};

/// Answers to claims and reports are far shorter.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// What did not come of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missed {
    /// It may come yet.
    Again(String),
    /// We are not wanted any more.
    Refused(Refusal),
    /// It will never come: the request, or what it asks for, is wrong.
    Wrong(String),
}

pub struct Farrier {
    base: Url,
    session: SecretString,
    /// For claims and reports; nothing interrupts those.
    calm: Client,
    /// For images, which end when the work does.
    braked: Client,
    pace: Pace,
}

impl Farrier {
    pub fn new(base: Url, session: SecretString, pace: &Pace, status: &Status) -> Self {
        let calm = Client::new(pace.limits, Arc::new(AtomicBool::new(false)));
        let braked = Client::new(pace.limits, status.brake());
        Self { base, session, calm, braked, pace: *pace }
    }

    /// Claims until there is an answer.
    pub fn claim(&self, claim: &Claim, status: &Status) -> Result<Assignment, Refusal> {
        let mut pauses = Pauses::new(&self.pace);
        let mut told = String::new();
        // Without end on purpose: a machine that has nothing to do waits for Farrier, which may be away for hours.
        loop {
            match self.claim_once(claim) {
                Ok(granted) => return Ok(granted),
                Err(Missed::Refused(refusal)) => return Err(refusal),
                Err(Missed::Again(said) | Missed::Wrong(said)) if said != told => {
                    say(&format!("claim: {said}; trying again"));
                    told = said;
                }
                Err(Missed::Again(_) | Missed::Wrong(_)) => {}
            }
            pauses.take(status);
        }
    }

    fn claim_once(&self, claim: &Claim) -> Result<Assignment, Missed> {
        self.post(deploy::CLAIM, None, claim, |status| status == 403)
    }

    fn report(&self, report: &Report) -> Result<ReportReply, Missed> {
        let refuses = |status| matches!(status, 401 | 403);
        self.post(deploy::REPORT, Some(&self.session), report, refuses)
    }

    /// Reports until it is over. For a thread of its own: the work never waits for it.
    pub fn run_reports(&self, status: &Status) {
        let mut pauses = Pauses::new(&self.pace);
        while let Some(report) = status.next_report(&self.pace) {
            self.deliver(&report, status, &mut pauses);
        }
    }

    /// Says one thing until it is heard, or does not matter any more.
    fn deliver(&self, report: &Report, status: &Status, pauses: &mut Pauses) {
        let mut told = false;
        while !status.over() {
            match self.report(report) {
                Ok(answer) => {
                    pauses.worked();
                    return status.told(report.stage, answer.then);
                }
                Err(Missed::Refused(refusal)) => {
                    say(&format!("report refused: {}", spoken(&refusal)));
                    return status.end(End::PowerOff);
                }
                Err(Missed::Again(said) | Missed::Wrong(said)) => {
                    if !told {
                        say(&format!("report: {said}; trying again"));
                    }
                    told = true;
                    pauses.take(status);
                }
            }
        }
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        bearer: Option<&SecretString>,
        content: &impl Serialize,
        refuses: impl Fn(u16) -> bool,
    ) -> Result<T, Missed> {
        let url = self.base.join(path).map_err(Missed::Wrong)?;
        let json = serde_json::to_vec(content).map_err(|error| Missed::Wrong(error.to_string()))?;
        let request = Request { method: "POST", url: &url, bearer, from: None, json: Some(&json) };
        let again = |error: io::Error| Missed::Again(format!("{url}: {error}"));
        let response = self.calm.send(&request).map_err(again)?;
        let status = response.status;
        let body = response.body.read_all(MAX_ANSWER_BYTES, self.pace.answer).map_err(again)?;
        match status {
            200 => serde_json::from_slice(&body).map_err(|error| {
                Missed::Again(format!("{url} answered what cannot be read: {error}"))
            }),
            status if refuses(status) => {
                Err(Missed::Refused(serde_json::from_slice(&body).unwrap_or_default()))
            }
            status => Err(Missed::Again(format!("{url} answered {status}"))),
        }
    }

    /// The image at this reference, as a thing to read from.
    pub fn image(&self, image: &Image) -> Result<Served<'_>, String> {
        let url = self.base.join(&image.url)?;
        // Whoever else serves it has no business with the session.
        let bearer = (url.address() == self.base.address()).then_some(&self.session);
        Ok(Served { farrier: self, url, bearer, size: image.size })
    }
}

/// An image that Farrier serves.
pub struct Served<'a> {
    farrier: &'a Farrier,
    url: Url,
    bearer: Option<&'a SecretString>,
    size: u64,
}

impl Source for Served<'_> {
    fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, Missed> {
        let (url, bearer) = (&self.url, self.bearer);
        let request = Request { method: "GET", url, bearer, from: Some(from), json: None };
        let again = |error: io::Error| Missed::Again(format!("{}: {error}", self.url));
        let response = self.farrier.braked.send(&request).map_err(again)?;
        match response.status {
            206 => self.part(response, from),
            200 => skip(response.body, from).map_err(again),
            401 | 403 if self.bearer.is_some() => {
                let body = response.body.read_all(MAX_ANSWER_BYTES, self.farrier.pace.answer);
                let refusal = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
                Err(Missed::Refused(refusal.unwrap_or_default()))
            }
            408 | 429 => Err(Missed::Again(format!("{} answered {}", self.url, response.status))),
            status @ 300..=499 => Err(Missed::Wrong(format!("{} answered {status}", self.url))),
            status => Err(Missed::Again(format!("{} answered {status}", self.url))),
        }
    }
}

impl Served<'_> {
    fn part(&self, response: Response, from: u64) -> Result<Box<dyn Read>, Missed> {
        match response.range {
            Some((_, Some(total))) if total != self.size => Err(Missed::Wrong(format!(
                "{} has {total} bytes and should have {}; was the image replaced?",
                self.url, self.size
            ))),
            Some((first, _)) if first == from => Ok(Box::new(response.body)),
            Some(_) | None => Err(Missed::Again(format!("{} answered another range", self.url))),
        }
    }
}

/// A server that knows no ranges sends everything; what we have already is read past.
fn skip(mut body: Body, from: u64) -> io::Result<Box<dyn Read>> {
    let skipped = io::copy(&mut Read::take(&mut body, from), &mut io::sink())?;
    if skipped < from {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Box::new(body))
}

pub fn spoken(refusal: &Refusal) -> String {
    match (refusal.said.as_str(), refusal.code.as_str()) {
        ("", "") => "no reason was given".into(),
        ("", code) => code.into(),
        (said, "") => said.into(),
        (said, code) => format!("{said} ({code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_spoken_with_what_there_is() {
        for (code, said, expected) in [
            ("", "", "no reason was given"),
            ("token-used", "", "token-used"),
            ("", "no", "no"),
            ("token-used", "used at noon", "used at noon (token-used)"),
        ] {
            assert_eq!(spoken(&Refusal { code: code.into(), said: said.into() }), expected);
        }
    }
}
