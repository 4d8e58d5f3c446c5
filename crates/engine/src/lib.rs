//! What happens next.
//!
//! The engine claims what is due, asks the model what to do, asks a provider to do it, and commits
//! the outcome in one fenced transaction. [`admission`] creates runs, `inventory` changes what is
//! registered, `turn` is the kernel, `worker` the claiming and the leases, `observe` the probes,
//! `watch` the events and logs as they happen, `retention` the clearing away. It speaks no vendor's
//! protocol and writes no SQL.

#![allow(clippy::wildcard_enum_match_arm, reason = "this crate does not keep to it yet")]

pub mod admission;
mod claims;
pub mod clock;
pub mod components;
mod conduct;
mod devices;
mod failure_detector;
pub mod firmware;
pub mod hardware;
mod health;
pub mod hosts;
mod images;
mod inventory;
mod journal;
mod kinds;
mod lifecycle;
pub mod nodes;
mod observe;
mod place;
mod query;
pub mod racks;
pub mod random;
mod retention;
mod run;
mod settings;
mod shelves;
mod sites;
mod surveys;
mod topology;
mod turn;
pub mod vault;
pub mod watch;
mod worker;

pub use devices::{DescribedDevice, OverdueDevices, PlacedSpec};
pub use images::DeletedImage;
pub use inventory::Described;
pub use query::{Explained, PlanPage};
pub use retention::Retention;
pub use settings::{NodeSettings, Settings};
pub use shelves::ShelfPreview;
pub use sites::DescribedSite;
pub use worker::Engine;
