//! The address of a BMC, which may name a System.

use crate::http_client::{Endpoint, EndpointError};
use model::fault::{Fault, FaultCode, Result};
use std::fmt;

/// The path under which every Redfish service begins.
pub(super) const ROOT: &str = "/redfish/v1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BmcAddress {
    pub endpoint: Endpoint,
    /// The path of the System that the address names.
    pub system: Option<String>,
}

impl BmcAddress {
    /// Reads `10.0.0.5`, `https://bmc-7:8443` or `https://10.0.0.5/redfish/v1/Systems/2`.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let (endpoint, path) = Endpoint::parse(text).map_err(|error| match error {
            // Not repeated in the fault: the text before the @ is probably a password.
            EndpointError::HasLogin => {
                wrong("with a user or password in it", "give them as a credential")
            }
            EndpointError::Scheme => wrong(text, "it must begin with https:// or http://"),
            EndpointError::Host => wrong(text, "it needs a host name or an address"),
        })?;
        let system = system_path(path)
            .ok_or_else(|| wrong(text, "its path must be /redfish/v1/Systems/ and an id"))?;
        Ok(Self { endpoint, system })
    }
}

impl fmt::Display for BmcAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

fn wrong(text: &str, why: &str) -> Fault {
    Fault::new(FaultCode::BmcUnreachable, format!("The BMC address {text:?} cannot be used: {why}"))
}

/// The System in a path: `Some(None)` if the path names none, `None` if the path is invalid.
fn system_path(path: &str) -> Option<Option<String>> {
    let path = path.trim_end_matches('/');
    if matches!(path, "" | "redfish" | "redfish/v1") {
        return Some(None);
    }
    let id = path.strip_prefix("redfish/v1/Systems/")?;
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '?' | '#');
    id.chars().all(plain).then(|| Some(format!("{ROOT}/Systems/{id}")))
}
