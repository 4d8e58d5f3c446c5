//! Real software that the providers are tested against: each is found or installed, and named to the tests in an
//! environment variable. The tests start it themselves, as often and as they need it.

pub mod sshd;
