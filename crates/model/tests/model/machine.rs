//! Tests of the parts of `model::machine`.

pub mod admit;
mod delete;
pub mod disk_write;
mod failed_change;
mod hardware;
mod matcher;
mod network_boot;
mod spec;
mod view;
