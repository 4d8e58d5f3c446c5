//! The peers that the providers are tested against: found on this host, or installed from system
//! packages where that needs no password. A missing peer is a failure on CI; elsewhere its tests
//! are skipped with a message.

pub mod chromium;
pub mod ipmi_sim;
pub mod oidc_provider;
pub mod packages;
pub mod sshd;
pub mod sushy;
