//! Providers against software that nobody here wrote, started by the tests themselves on loopback.
//!
//! `cargo xtask test` installs each peer and names it in an environment variable. Without the variable a test says that it
//! was skipped; on CI that is a failure, because a test that silently stops being run there would be noticed by nobody.

mod jobs;
mod logins;
mod sshd;
