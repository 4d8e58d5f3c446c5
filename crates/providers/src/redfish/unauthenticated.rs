//! At the door of a BMC, before anybody logs in: who shows which certificate, and what the service says of itself to
//! strangers. For finding out how far one gets; whoever wants something of the BMC uses [`super::Bmc`].

use super::client::Link;
use super::{About, Login, Settings};
use crate::http_client::{Certificate, Endpoint, Trust};
use model::fault::Fault;

/// A BMC that nothing has been said to yet.
pub struct UnauthenticatedBmc(Link);

impl UnauthenticatedBmc {
    pub fn new(endpoint: Endpoint, trust: Trust, settings: &Settings) -> Result<Self, Fault> {
        // No request from here carries a login, so there is none to have.
        let nobody = Login { user: String::new(), password: String::new().into() };
        Link::unopened(endpoint, nobody, trust, settings).map(Self)
    }

    /// Connects, and sees who is there. Nothing is asked.
    pub async fn open_connection(&self) -> Result<(), Fault> {
        self.0.open_connection().await
    }

    /// The certificate that was shown, whether it was believed or not. None without TLS.
    pub fn certificate(&self) -> Option<Certificate> {
        self.0.certificate()
    }

    /// What the service says of itself. None when it only speaks to those who are logged in.
    pub async fn about(&self) -> Result<Option<About>, Fault> {
        Ok(self.0.open_root().await?.map(|root| About::of(root.root())))
    }
}
