//! The peers that the providers are tested against: found on this computer, or installed from the system's packages
//! where that needs no password. On CI a peer that cannot be had is a failure; elsewhere its tests are left out with a
//! word.

pub mod ipmi_sim;
pub mod sshd;
pub mod sushy;
