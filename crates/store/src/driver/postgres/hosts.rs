//! The hosts in the URL of the database.

use super::tls::Verification;
use crate::{Result, StoreError};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// The URL's parser ends a password at its first `@`, and takes the rest of it for the host, which
/// would be looked up and logged.
pub(super) fn refuse_split_password(config: &Config) -> Result<()> {
    let is_split = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
    match config.get_hosts().iter().any(is_split) {
        true => Err(StoreError::Unavailable(
            "the password in the database URL has an @; write %40 in its place".into(),
        )),
        false => Ok(()),
    }
}

/// Says at every start that the way to a database on another host is open to others.
pub(super) fn warn_if_unverified(config: &Config, verification: Verification) {
    let distant = |host: &&Host| match host {
        Host::Unix(_) => false,
        Host::Tcp(name) => {
            let address = name.parse::<std::net::IpAddr>();
            address.map_or(name != "localhost", |address| !address.is_loopback())
        }
    };
    let Some(Host::Tcp(host)) = config.get_hosts().iter().find(distant) else { return };
    let how = match verification {
        Verification::Disable | Verification::Prefer => "may not be encrypted",
        Verification::Require => "is encrypted, and its certificate is not verified",
        Verification::Authority | Verification::Full => return,
    };
    tracing::warn!(
        host,
        "the connection to PostgreSQL {how}; use sslmode=verify-full&sslrootcert=FILE"
    );
}
