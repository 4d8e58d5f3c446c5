//! Issuer, subject and expiry of a certificate, for display.
//!
//! Nothing is decided by this: `trust` verifies certificates. A value that cannot be read stays
//! empty. A certificate is nested DER elements (X.690) of tag, length and content; an element that
//! is longer than the data ends the reading.

use super::trust::Fingerprint;
use model::time::Timestamp;

/// The longest name that is shown.
const MAX_NAME_CHARS: usize = 400;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;
/// 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.4.10, for authorities without a common name.
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
/// The most bytes of a length; no certificate is longer than that allows.
const MAX_LENGTH_BYTES: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub fingerprint: Fingerprint,
    pub issuer: Option<String>,
    pub subject: Option<String>,
    /// True if issuer and subject are equal; the signature is not checked.
    pub self_signed: bool,
    pub expires_at: Option<Timestamp>,
}

impl Certificate {
    pub(crate) fn read(der: &[u8]) -> Self {
        let fingerprint = Fingerprint::of_bytes(der);
        let reported = raw_fields(der);
        let (issuer, expires_at, subject) = reported.unwrap_or_default();
        Self {
            fingerprint,
            issuer: name(issuer),
            subject: name(subject),
            self_signed: !issuer.is_empty() && issuer == subject,
            expires_at: parse_expiry(expires_at),
        }
    }
}

/// The raw issuer, validity and subject.
fn raw_fields(der: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (certificate, _) = piece(der, SEQUENCE)?;
    let (body, _) = piece(certificate, SEQUENCE)?;
    let body = match body.first() {
        Some(&VERSION) => any(body)?.2,
        Some(_) | None => body,
    };
    let (_, _, body) = any(body)?; // the serial number
    let (_, body) = piece(body, SEQUENCE)?; // how it is signed
    let (issuer, body) = piece(body, SEQUENCE)?;
    let (validity, body) = piece(body, SEQUENCE)?;
    let (subject, _) = piece(body, SEQUENCE)?;
    Some((issuer, validity, subject))
}

/// An element: its tag, its content, and the bytes after it.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        long => {
            let count = usize::from(long & 0x7f);
            if count == 0 || count > MAX_LENGTH_BYTES {
                return None;
            }
            let (digits, rest) = rest.split_at_checked(count)?;
            let length = digits.iter().fold(0_usize, |sum, digit| sum << 8 | usize::from(*digit));
            (length, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// The content of an element with this tag, and the bytes after it.
fn piece(bytes: &[u8], desired: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = any(bytes)?;
    (tag == desired).then_some((content, rest))
}

/// The common name, or else the organization.
fn name(mut names: &[u8]) -> Option<String> {
    let mut organization = None;
    while let Some((set, rest)) = piece(names, SET) {
        names = rest;
        let Some((pair, _)) = piece(set, SEQUENCE) else { continue };
        let Some((kind, value)) = piece(pair, OBJECT_ID) else { continue };
        let text = any(value).map(|(_, text, _)| {
            super::text::one_line(&String::from_utf8_lossy(text), MAX_NAME_CHARS)
        });
        match kind {
            COMMON_NAME => return text,
            ORGANIZATION => organization = text,
            _ => {}
        }
    }
    organization
}

/// The end of the validity.
fn parse_expiry(validity: &[u8]) -> Option<Timestamp> {
    let (_, _, rest) = any(validity)?;
    let (tag, text, _) = any(rest)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        // Two digits, which stand for 1950 to 2049.
        UTC_TIME => match text.split_at_checked(2)? {
            (year, rest) if year < "50" => (format!("20{year}"), rest),
            (year, rest) => (format!("19{year}"), rest),
        },
        GENERALIZED_TIME => text.split_at_checked(4).map(|(year, rest)| (year.to_owned(), rest))?,
        _ => return None,
    };
    let digits = rest.len() == 10 && rest.bytes().all(|byte| byte.is_ascii_digit());
    let pair = |at: usize| rest.get(at..at + 2).filter(|_| digits);
    let (month, day, hour) = (pair(0)?, pair(2)?, pair(4)?);
    let spelled = format!("{year}-{month}-{day}T{hour}:{}:{}Z", pair(6)?, pair(8)?);
    let instant: jiff::Timestamp = spelled.parse().ok()?;
    Some(Timestamp::from_micros(instant.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair, date_time_ymd};

    fn issue(until: i32) -> (Vec<u8>, Vec<u8>) {
        let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
        authority.distinguished_name.push(DnType::OrganizationName, "Acme");
        authority.distinguished_name.push(DnType::CommonName, "The \u{7}Authority");
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let mut params = CertificateParams::new(["h".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Acme");
        params.not_after = date_time_ymd(until, 2, 28);
        let certificate = params.signed_by(&KeyPair::generate().unwrap(), &authority).unwrap();
        (authority.der().to_vec(), certificate.der().to_vec())
    }

    #[test]
    fn issuer_subject_and_expiry_are_read() {
        for (until, at) in [(2031, "2031-02-28T00:00:00Z"), (2077, "2077-02-28T00:00:00Z")] {
            let (authority, certificate) = issue(until);
            let read = Certificate::read(&certificate);
            assert_eq!(read.issuer.as_deref(), Some("The Authority"));
            assert_eq!(read.subject.as_deref(), Some("Acme"));
            let at: jiff::Timestamp = at.parse().unwrap();
            let at = Timestamp::from_micros(at.as_microsecond());
            assert_eq!((read.expires_at, read.self_signed), (Some(at), false));
            assert!(Certificate::read(&authority).self_signed);
        }
    }

    /// A certificate that is truncated anywhere reads as empty and never panics.
    #[test]
    fn a_truncated_certificate_reads_as_empty() {
        let (_, certificate) = issue(2031);
        for end in 0..certificate.len() {
            let read = Certificate::read(&certificate[..end]);
            assert_eq!((read.issuer, read.expires_at), (None, None), "{end}");
        }
        for at in 0..certificate.len() {
            let mut changed = certificate.clone();
            changed[at] ^= 0xff;
            Certificate::read(&changed);
        }
    }
}
