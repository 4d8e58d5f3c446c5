//! Reads the identity of a client certificate. The listener has verified the certificate; the model
//! decides which of its names counts.

use engine::access::ForeignIdentity;
use model::access::CertificateNames;
use model::time::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

/// The longest certificate that is read.
const MAX_BYTES: usize = 64 * 1024;

/// The identity of a certificate, as DER. The error continues a sentence about the certificate.
pub(crate) fn read_identity(der: &[u8]) -> Result<ForeignIdentity, String> {
    if der.len() > MAX_BYTES {
        return Err(format!("is longer than {MAX_BYTES} bytes"));
    }
    let unreadable = |what: &str| format!("cannot be read: {what}");
    let (rest, certificate) =
        X509Certificate::from_der(der).map_err(|_| unreadable("it is no X.509"))?;
    if !rest.is_empty() {
        return Err(unreadable("bytes follow it"));
    }
    let texts = |part: &str, values: Vec<&AttributeTypeAndValue<'_>>| {
        let texts = values.into_iter().map(|value| value.as_str().map(str::to_string));
        texts.collect::<Result<Vec<_>, _>>().map_err(|_| unreadable(part))
    };
    let subject = certificate.subject();
    let names = CertificateNames {
        uris: uris(&certificate)?,
        common_names: texts("its common name", subject.iter_common_name().collect())?,
        organizations: texts("its organization", subject.iter_organization().collect())?,
    };
    let seconds = certificate.validity().not_after.timestamp();
    let valid_until = Timestamp::from_millis(seconds.saturating_mul(1_000));
    Ok(ForeignIdentity { principal: names.principal()?, valid_until })
}

fn uris(certificate: &X509Certificate<'_>) -> Result<Vec<String>, String> {
    let unreadable = || "cannot be read: its alternative names".to_string();
    let names = certificate.subject_alternative_name().map_err(|_| unreadable())?;
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let mut uris = Vec::new();
    for name in names {
        match name {
            GeneralName::URI(uri) => uris.push((*uri).to_string()),
            // It may be a URI that we cannot read.
            GeneralName::Invalid(..) => return Err(unreadable()),
            GeneralName::OtherName(..)
            | GeneralName::RFC822Name(_)
            | GeneralName::DNSName(_)
            | GeneralName::X400Address(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EDIPartyName(_)
            | GeneralName::IPAddress(_)
            | GeneralName::RegisteredID(_) => {}
        }
    }
    Ok(uris)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType, date_time_ymd};

    fn certificate(uris: &[&str], subject: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["host.example".to_string()]).unwrap();
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.distinguished_name = DistinguishedName::new();
        for (kind, text) in subject {
            params.distinguished_name.push(kind.clone(), *text);
        }
        params.not_after = date_time_ymd(2031, 2, 28);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_names_and_the_end_are_read() {
        let ada = [(DnType::OrganizationName, "ops"), (DnType::CommonName, "ada")];
        let read = read_identity(&certificate(&[], &ada)).unwrap();
        assert_eq!(
            (read.principal.user.as_str(), read.principal.groups),
            ("ada", vec!["ops".into()])
        );
        assert_eq!(read.valid_until, Timestamp::parse("2031-02-28T00:00:00Z").unwrap());
        let spiffe = "spiffe://example.org/farrier";
        let read = read_identity(&certificate(&[spiffe], &ada)).unwrap();
        assert_eq!((read.principal.user.as_str(), read.principal.groups), (spiffe, Vec::new()));
        for (uris, subject, words) in [
            (vec![spiffe, "spiffe://example.org/b"], ada.as_slice(), "2 URIs"),
            (vec![], [].as_slice(), "neither a SPIFFE ID nor a common name"),
        ] {
            let problem = read_identity(&certificate(&uris, subject)).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }

    /// A certificate that is cut off is refused, and no byte of it leads to a panic.
    #[test]
    fn a_damaged_certificate_has_no_identity_or_another_one() {
        let der = certificate(&["spiffe://example.org/farrier"], &[(DnType::CommonName, "ada")]);
        for end in 0..der.len() {
            read_identity(&der[..end]).unwrap_err();
        }
        read_identity(&[der.as_slice(), &[0]].concat()).unwrap_err();
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 0xff;
            let _ = read_identity(&changed);
        }
    }
}
