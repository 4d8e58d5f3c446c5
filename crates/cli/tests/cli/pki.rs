//! A certificate authority for tests, with certificates, revocation lists and their files.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber, date_time_ymd,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// The purpose of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
}

/// The files of a certificate and of its key.
#[derive(Debug, Clone)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Writes the authority's certificate.
    pub fn write(&self, path: &Path) -> PathBuf {
        replace(path, &self.pem);
        path.to_owned()
    }

    /// Makes a certificate for these names, and writes it as `stem.pem` and `stem.key`.
    pub fn issue(
        &self,
        dir: &Path,
        stem: &str,
        (usage, names, serial): (Usage, &[&str], u64),
    ) -> Files {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, stem);
        params.serial_number = Some(SerialNumber::from(serial));
        self.sign(dir, stem, usage, params)
    }

    /// Makes a certificate, and writes it as `stem.pem` and `stem.key`.
    pub fn sign(
        &self,
        dir: &Path,
        stem: &str,
        usage: Usage,
        mut params: CertificateParams,
    ) -> Files {
        params.extended_key_usages = vec![match usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |ending: &str| dir.join(format!("{stem}.{ending}"));
        let files = Files { certificate: file("pem"), key: file("key") };
        replace(&files.key, &key.serialize_pem());
        replace(&files.certificate, &certificate.pem());
        files
    }

    /// Writes a list that revokes these serial numbers.
    pub fn revoke(&self, path: &Path, serials: &[u64]) -> PathBuf {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(serials.len() as u64 + 1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        replace(path, &list.signed_by(&self.issuer).unwrap().pem().unwrap());
        path.to_owned()
    }
}

/// Replaces a file at once, as a program that renews certificates does.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}
