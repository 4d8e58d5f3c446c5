//! The client of Farrier's deploy API: one function for each request, and the meaning of each
//! answer.
//!
//! Callers retry every error except a refusal: Farrier may be restarted at any moment.

use crate::console::print_line;
use crate::http::{Body, Client, Request, Response, Url};
use crate::image::ImageSource;
use crate::status::{DeployStatus, FinalAction};
use crate::timing::{Backoff, Timing};
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::Refusal;
use wire::deploy::{self, Claim, Image, Report, ReportReply, SignedManifest};

/// The limit of an answer to a claim or a report, which are far shorter.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// A retry may succeed.
    Retryable(String),
    /// Farrier refused: the deployment is not for this machine any more.
    Refused(Refusal),
    /// A retry cannot succeed: the request or its target is wrong.
    Invalid(String),
}

pub struct DeployClient {
    base: Url,
    session: SecretString,
    /// For claims and reports; cannot be interrupted.
    report_client: Client,
    /// For images; interrupted when the work must stop.
    image_client: Client,
    timing: Timing,
}

impl DeployClient {
    pub fn new(base: Url, session: SecretString, timing: &Timing, status: &DeployStatus) -> Self {
        let report_client = Client::new(timing.timeouts, Arc::new(AtomicBool::new(false)));
        let image_client = Client::new(timing.timeouts, status.stop_flag());
        Self { base, session, report_client, image_client, timing: *timing }
    }

    /// Retries the claim until there is an answer.
    pub fn claim(&self, claim: &Claim, status: &DeployStatus) -> Result<SignedManifest, Refusal> {
        let mut backoff = Backoff::new(&self.timing);
        let mut reported = String::new();
        // Endless on purpose: the machine has nothing else to do, and Farrier may be unreachable
        // for hours.
        loop {
            match self.claim_once(claim) {
                Ok(granted) => return Ok(granted),
                Err(RequestError::Refused(refusal)) => return Err(refusal),
                Err(RequestError::Retryable(message) | RequestError::Invalid(message))
                    if message != reported =>
                {
                    print_line(&format!("claim: {message}; trying again"));
                    reported = message;
                }
                Err(RequestError::Retryable(_) | RequestError::Invalid(_)) => {}
            }
            backoff.pause(status);
        }
    }

    fn claim_once(&self, claim: &Claim) -> Result<SignedManifest, RequestError> {
        self.post(deploy::CLAIM, None, claim, |status| status == 403)
    }

    fn report(&self, report: &Report) -> Result<ReportReply, RequestError> {
        let refuses = |status| matches!(status, 401 | 403);
        self.post(deploy::REPORT, Some(&self.session), report, refuses)
    }

    /// Sends reports until the deployment has ended. Runs in its own thread, so the work never
    /// waits for it.
    pub fn run_reports(&self, status: &DeployStatus) {
        let mut backoff = Backoff::new(&self.timing);
        while let Some(report) = status.next_report(&self.timing) {
            self.deliver_report(&report, status, &mut backoff);
        }
    }

    /// Retries a report until it is delivered or the deployment has ended.
    fn deliver_report(&self, report: &Report, status: &DeployStatus, backoff: &mut Backoff) {
        let mut reported = false;
        while !status.has_ended() {
            match self.report(report) {
                Ok(answer) => {
                    backoff.reset();
                    return status.apply_answer(report.stage, answer.next_action);
                }
                Err(RequestError::Refused(refusal)) => {
                    print_line(&format!("report refused: {}", describe_refusal(&refusal)));
                    return status.finish_with(FinalAction::PowerOff);
                }
                Err(RequestError::Retryable(message) | RequestError::Invalid(message)) => {
                    if !reported {
                        print_line(&format!("report: {message}; trying again"));
                    }
                    reported = true;
                    backoff.pause(status);
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
    ) -> Result<T, RequestError> {
        let url = self.base.join(path).map_err(RequestError::Invalid)?;
        let json = serde_json::to_vec(content)
            .map_err(|error| RequestError::Invalid(error.to_string()))?;
        let request = Request { method: "POST", url: &url, bearer, from: None, json: Some(&json) };
        let again = |error: io::Error| RequestError::Retryable(format!("{url}: {error}"));
        let response = self.report_client.send(&request).map_err(again)?;
        let status = response.status;
        let body = response.body.read_all(MAX_ANSWER_BYTES, self.timing.answer).map_err(again)?;
        match status {
            200 => serde_json::from_slice(&body).map_err(|error| {
                RequestError::Retryable(format!("{url} answered what cannot be read: {error}"))
            }),
            status if refuses(status) => {
                Err(RequestError::Refused(serde_json::from_slice(&body).unwrap_or_default()))
            }
            status => Err(RequestError::Retryable(format!("{url} answered {status}"))),
        }
    }

    /// The image at this reference, as a source to read from.
    pub fn image(&self, image: &Image) -> Result<HttpImage<'_>, String> {
        let url = self.base.join(&image.url)?;
        // Only Farrier gets the session, not another server of the image.
        let bearer = (url.address() == self.base.address()).then_some(&self.session);
        Ok(HttpImage { client: self, url, bearer, size: image.size })
    }
}

/// An image that is fetched over HTTP.
pub struct HttpImage<'a> {
    client: &'a DeployClient,
    url: Url,
    bearer: Option<&'a SecretString>,
    size: u64,
}

impl ImageSource for HttpImage<'_> {
    fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, RequestError> {
        let (url, bearer) = (&self.url, self.bearer);
        let request = Request { method: "GET", url, bearer, from: Some(from), json: None };
        let again = |error: io::Error| RequestError::Retryable(format!("{}: {error}", self.url));
        let response = self.client.image_client.send(&request).map_err(again)?;
        match response.status {
            206 => self.check_range(response, from),
            200 => skip_to(response.body, from).map_err(again),
            401 | 403 if self.bearer.is_some() => {
                let body = response.body.read_all(MAX_ANSWER_BYTES, self.client.timing.answer);
                let refusal = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
                Err(RequestError::Refused(refusal.unwrap_or_default()))
            }
            408 | 429 => {
                Err(RequestError::Retryable(format!("{} answered {}", self.url, response.status)))
            }
            status @ 300..=499 => {
                Err(RequestError::Invalid(format!("{} answered {status}", self.url)))
            }
            status => Err(RequestError::Retryable(format!("{} answered {status}", self.url))),
        }
    }
}

impl HttpImage<'_> {
    fn check_range(&self, response: Response, from: u64) -> Result<Box<dyn Read>, RequestError> {
        match response.range {
            Some((_, Some(total))) if total != self.size => Err(RequestError::Invalid(format!(
                "{} has {total} bytes and should have {}; was the image replaced?",
                self.url, self.size
            ))),
            Some((first, _)) if first == from => Ok(Box::new(response.body)),
            Some(_) | None => {
                Err(RequestError::Retryable(format!("{} answered another range", self.url)))
            }
        }
    }
}

/// A server without range requests sends the whole file; the bytes before `from` are skipped.
fn skip_to(mut body: Body, from: u64) -> io::Result<Box<dyn Read>> {
    let skipped = io::copy(&mut Read::take(&mut body, from), &mut io::sink())?;
    if skipped < from {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Box::new(body))
}

pub fn describe_refusal(refusal: &Refusal) -> String {
    match (refusal.message.as_str(), refusal.code.as_str()) {
        ("", "") => "no reason was given".into(),
        ("", code) => code.into(),
        (message, "") => message.into(),
        (message, code) => format!("{message} ({code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_described_by_code_and_text() {
        for (code, text, expected) in [
            ("", "", "no reason was given"),
            ("token-used", "", "token-used"),
            ("", "no", "no"),
            ("token-used", "used at noon", "used at noon (token-used)"),
        ] {
            assert_eq!(
                describe_refusal(&Refusal { code: code.into(), message: text.into() }),
                expected
            );
        }
    }
}
