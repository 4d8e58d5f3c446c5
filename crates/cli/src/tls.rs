//! `farrier tls`: the certificates of a first set-up, made on this host, and their renewal.
//!
//! The name of the authority is derived from its key, so the key alone is enough for more
//! certificates.

use crate::args::{TlsCommand, TlsFilesArgs};
use crate::exit::{Exit, Failure, Result};
use crate::output::Screen;
use jiff::civil::Date;
use jiff::{ToSpan, Zoned};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde::Serialize;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An authority is replaced by hand on every client.
const CA_YEARS: i32 = 10;
/// Browsers accept no server certificate that is valid for longer.
const SERVER_DAYS: i32 = 397;
const CLIENT_DAYS: i32 = 397;
/// Clocks of clients may be behind ours.
const CLOCK_SKEW_DAYS: i32 = 1;
const FOR_OWNER: u32 = 0o600;
const FOR_ALL: u32 = 0o644;
const CA_KEY: &str = "ca.key";
/// The files in the order in which they are written, and who may read them.
const FILES: [(&str, u32); 6] = [
    (CA_KEY, FOR_OWNER),
    ("ca.pem", FOR_ALL),
    ("server.key", FOR_OWNER),
    ("server.pem", FOR_ALL),
    ("client.key", FOR_OWNER),
    ("client.pem", FOR_ALL),
];
/// The files of the authority come first.
const CA_FILES: usize = 2;

pub fn run(screen: &mut Screen, command: TlsCommand) -> Result<Exit> {
    match command {
        TlsCommand::Init(args) => {
            let made = init(&args)?;
            screen.print_value(&made, |made| format!("{}\n", made.describe_init()))?;
        }
        TlsCommand::Renew(args) => {
            let made = renew(&args)?;
            screen.print_value(&made, |made| format!("{}\n", made.describe()))?;
        }
    }
    Ok(Exit::Success)
}

/// The result of a command.
#[derive(Debug, Serialize)]
struct TlsFiles {
    dir: PathBuf,
    names: Vec<String>,
    client: String,
    server_valid_until: String,
    client_valid_until: String,
}

impl TlsFiles {
    fn new(dir: PathBuf, names: Vec<String>, client: &str, today: Date) -> Self {
        Self {
            dir,
            names,
            client: client.into(),
            server_valid_until: after(today, SERVER_DAYS).to_string(),
            client_valid_until: after(today, CLIENT_DAYS).to_string(),
        }
    }

    fn describe(&self) -> String {
        format!(
            "In {}:\n\
             \x20 ca.pem      the authority; ca.key makes more certificates, keep it offline\n\
             \x20 server.pem  for {}, until {}\n\
             \x20 client.pem  for {}, until {}",
            self.dir.display(),
            self.names.join(", "),
            self.server_valid_until,
            self.client,
            self.client_valid_until
        )
    }

    /// The same, with what to write where.
    fn describe_init(&self) -> String {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let host = match self.names.last() {
            Some(address) if address.contains(':') => format!("[{address}]"),
            Some(name) => name.clone(),
            None => "localhost".into(),
        };
        format!(
            "{}\n\n\
             Write into the server's configuration:\n\n\
             \x20 [tls]\n\
             \x20 certificate = {:?}\n\
             \x20 key = {:?}\n\
             \x20 client_ca = {:?}\n\n\
             Type on clients, which need copies of these files:\n\n\
             \x20 export FARRIER_SERVER=https://{host}:7411\n\
             \x20 export FARRIER_SERVER_CA={}\n\
             \x20 export FARRIER_CLIENT_CERTIFICATE={}\n\
             \x20 export FARRIER_CLIENT_KEY={}",
            self.describe(),
            file("server.pem"),
            file("server.key"),
            file("ca.pem"),
            file("ca.pem"),
            file("client.pem"),
            file("client.key")
        )
    }
}

fn init(args: &TlsFilesArgs) -> Result<TlsFiles> {
    let names = server_names(&args.names)?;
    let dir = prepare_dir(&args.dir)?;
    let today = Zoned::now().date();
    let authority = KeyPair::generate().map_err(not_made)?;
    let texts = make(authority, &names, &args.client, today).map_err(not_made)?;
    for ((name, mode), text) in FILES.into_iter().zip(&texts) {
        write_new(&dir.join(name), mode, text)?;
    }
    Ok(TlsFiles::new(dir, names, &args.client, today))
}

/// Replaces all but the files of the authority.
fn renew(args: &TlsFilesArgs) -> Result<TlsFiles> {
    let names = server_names(&args.names)?;
    let key_file = args.dir.join(CA_KEY);
    let unusable = |error: &dyn std::fmt::Display| {
        Failure::refused(format!(
            "{}: {error}; the key of the authority that `farrier tls init` has made must be there",
            key_file.display()
        ))
    };
    let pem = std::fs::read_to_string(&key_file).map_err(|error| unusable(&error))?;
    let authority = KeyPair::from_pem(&pem).map_err(|error| unusable(&error))?;
    let today = Zoned::now().date();
    let texts = make(authority, &names, &args.client, today).map_err(not_made)?;
    for ((name, mode), text) in FILES.into_iter().zip(&texts).skip(CA_FILES) {
        let (path, new) = (args.dir.join(name), args.dir.join(format!("{name}.new")));
        write_new(&new, mode, text)?;
        std::fs::rename(&new, &path)
            .map_err(|error| Failure::refused(format!("{}: {error}", path.display())))?;
    }
    Ok(TlsFiles::new(args.dir.clone(), names, &args.client, today))
}

fn not_made(error: rcgen::Error) -> Failure {
    Failure::refused(format!("no certificate could be made: {error}"))
}

/// The names of this host, then those that were given: the last one is shown to clients.
fn server_names(given: &[String]) -> Result<Vec<String>> {
    let wrong = |name: &&String| {
        name.is_empty()
            || name.contains([':', '/', ' ']) && name.parse::<std::net::IpAddr>().is_err()
    };
    if let Some(name) = given.iter().find(wrong) {
        return Err(Failure::refused(format!(
            "--name {name:?} is no name and no IP address; write it alone, as in \
             --name farrier.example.com"
        )));
    }
    let own = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let own = Some(own.trim().to_string()).filter(|name| !name.is_empty());
    let usual = ["127.0.0.1", "::1"].map(String::from).into_iter().chain(own);
    let mut names: Vec<String> = Vec::new();
    for name in usual.chain(["localhost".to_string()]).chain(given.iter().cloned()) {
        names.retain(|known| *known != name);
        names.push(name);
    }
    Ok(names)
}

/// Creates the directory; refuses one that has any of the files.
fn prepare_dir(dir: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| {
        Failure::refused(format!("{}: {error}; choose another directory", dir.display()))
    };
    DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    let dir = dir.canonicalize().map_err(failed)?;
    match FILES.iter().find(|(name, _)| dir.join(name).symlink_metadata().is_ok()) {
        None => Ok(dir),
        Some((name, _)) => Err(Failure::refused(format!(
            "{} exists and is not overwritten; choose another directory, or move it away",
            dir.join(name).display()
        ))),
    }
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|error| Failure::refused(format!("{}: {error}", path.display())))
}

fn after(today: Date, days: i32) -> Date {
    today.saturating_add(days.days())
}

/// The texts of the files, in the order of `FILES`.
fn make(
    authority_key: KeyPair,
    names: &[String],
    client: &str,
    today: Date,
) -> Result<[String; 6], rcgen::Error> {
    let mut params = CertificateParams::default();
    let id = params.key_identifier(&authority_key);
    let id: String = id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = named(&format!("Farrier CA {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, today, today.saturating_add(CA_YEARS.years()));
    let authority = params.self_signed(&authority_key)?;
    let (authority_pem, authority_key_pem) = (authority.pem(), authority_key.serialize_pem());
    let issuer = Issuer::new(params, authority_key);

    let mut server = CertificateParams::new(names)?;
    server.distinguished_name = named(names.last().map_or("farrier", String::as_str));
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    set_validity(&mut server, today, after(today, SERVER_DAYS));
    let (server, server_key) = signed(server, &issuer)?;

    let mut client_params = CertificateParams::default();
    client_params.distinguished_name = named(client);
    client_params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    set_validity(&mut client_params, today, after(today, CLIENT_DAYS));
    let (client, client_key) = signed(client_params, &issuer)?;
    Ok([
        authority_key_pem,
        authority_pem,
        server_key.serialize_pem(),
        server.pem(),
        client_key.serialize_pem(),
        client.pem(),
    ])
}

fn signed(
    mut params: CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(Certificate, KeyPair), rcgen::Error> {
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?, key))
}

fn named(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn set_validity(params: &mut CertificateParams, from: Date, to: Date) {
    let time = |date: Date| {
        let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
        date_time_ymd(date.year().into(), month, day)
    };
    params.not_before = time(after(from, -CLOCK_SKEW_DAYS));
    params.not_after = time(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_the_last_one_is_shown() {
        let names = server_names(&["farrier.example".into(), "10.0.0.7".into()]).unwrap();
        assert!(names.starts_with(&["127.0.0.1".into(), "::1".into()]), "{names:?}");
        assert!(names.ends_with(&["farrier.example".into(), "10.0.0.7".into()]), "{names:?}");
        assert!(names.contains(&"localhost".to_string()));
        for bad in ["", "https://farrier", "farrier:7411", "a b"] {
            let failure = server_names(&[bad.to_string()]).unwrap_err();
            assert!(failure.message.contains("--name"), "{}", failure.message);
        }
    }
}
