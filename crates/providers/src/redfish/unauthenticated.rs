//! A BMC without a login: its certificate, and what the service root says. Used by probes that find
//! out how far a connection gets; everything else uses [`super::Bmc`].

use super::client::RedfishClient;
use super::{About, Login, Settings};
use crate::http_client::{Certificate, Endpoint, Trust};
use model::credential::AllowedAddresses;
use model::fault::Result;

pub struct UnauthenticatedBmc(RedfishClient);

impl UnauthenticatedBmc {
    pub fn new(endpoint: Endpoint, trust: Trust, settings: &Settings) -> Result<Self> {
        // No request is sent with a login.
        let nobody = Login {
            user: String::new(),
            password: String::new().into(),
            allowed: AllowedAddresses::Any,
        };
        RedfishClient::unopened(endpoint, nobody, trust, settings).map(Self)
    }

    /// Connects without sending a request.
    pub async fn open_connection(&self) -> Result<()> {
        self.0.open_connection().await
    }

    /// The certificate of the peer, trusted or not. None without TLS.
    pub fn certificate(&self) -> Option<Certificate> {
        self.0.certificate()
    }

    /// The facts in the service root. None if it requires a login.
    pub async fn about(&self) -> Result<Option<About>> {
        Ok(self.0.open_root().await?.map(|root| About::of(root.root())))
    }
}
