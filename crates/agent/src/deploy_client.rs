//! The client of Farrier's deploy API: one function for each request, and the meaning of each
//! answer.
//!
//! Callers retry every error except a refusal: Farrier may be restarted at any moment.

use crate::console::say;
use crate::http::{Body, Client, Request, Response, Url};
use crate::image::Source;
use crate::status::{End, Status};
use crate::timing::{Pace, Pauses};
use crate::wire::{self, Claim, Granted, Refusal, Report, Told};
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The limit of an answer to a claim or a report, which are far shorter.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missed {
    /// A retry may succeed.
    Again(String),
    /// Farrier refused: the deployment is not for this machine any more.
    Refused(Refusal),
    /// A retry cannot succeed: the request or its target is wrong.
    Wrong(String),
}

pub struct Farrier {
    base: Url,
    session: SecretString,
    /// For claims and reports; cannot be interrupted.
    calm: Client,
    /// For images; interrupted when the work must stop.
    braked: Client,
    pace: Pace,
}

impl Farrier {
    pub fn new(base: Url, session: SecretString, pace: &Pace, status: &Status) -> Self {
        let calm = Client::new(pace.limits, Arc::new(AtomicBool::new(false)));
        let braked = Client::new(pace.limits, status.brake());
        Self { base, session, calm, braked, pace: *pace }
    }

    /// Retries the claim until there is an answer.
    pub fn claim(&self, claim: &Claim, status: &Status) -> Result<Granted, Refusal> {
        let mut pauses = Pauses::new(&self.pace);
        let mut told = String::new();
        // Endless on purpose: the machine has nothing else to do, and Farrier may be unreachable
        // for hours.
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

    fn claim_once(&self, claim: &Claim) -> Result<Granted, Missed> {
        self.post(wire::CLAIM, None, claim, |status| status == 403)
    }

    fn report(&self, report: &Report) -> Result<Told, Missed> {
        let refuses = |status| matches!(status, 401 | 403);
        self.post(wire::REPORT, Some(&self.session), report, refuses)
    }

    /// Sends reports until the deployment has ended. Runs in its own thread, so the work never
    /// waits for it.
    pub fn run_reports(&self, status: &Status) {
        let mut pauses = Pauses::new(&self.pace);
        while let Some(report) = status.next_report(&self.pace) {
            self.deliver(&report, status, &mut pauses);
        }
    }

    /// Retries a report until it is delivered or the deployment has ended.
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

    /// The image at this reference, as a source to read from.
    pub fn image(&self, image: &wire::Image) -> Result<Served<'_>, String> {
        let url = self.base.join(&image.url)?;
        // Only Farrier gets the session, not another server of the image.
        let bearer = (url.address() == self.base.address()).then_some(&self.session);
        Ok(Served { farrier: self, url, bearer, size: image.size })
    }
}

/// An image that is fetched over HTTP.
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

/// A server without range requests sends the whole file; the bytes before `from` are skipped.
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
