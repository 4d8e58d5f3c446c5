//! Scheduling and execution.
//!
//! The engine claims due objects, lets the model decide, calls a provider, and commits the outcome
//! in one fenced transaction. [`Engine`] owns the shared context and provides a service for each
//! kind. `admission` creates runs, `scheduler` claims objects, renews the lease and runs the turns,
//! `turn` is the kernel, `watch` streams events and logs, `retention` deletes expired rows. The
//! engine contains no vendor protocol and no SQL.

pub mod access;
pub mod admission;
mod approval;
pub mod audit;
mod change;
pub mod clock;
pub mod cluster;
pub mod component;
pub mod database;
mod device;
mod engine;
mod explain;
mod fan_out;
pub mod firmware;
mod health;
mod holds;
pub mod host;
mod image;
mod log_buffer;
pub mod machine;
pub mod node;
mod notify;
mod plan;
mod power_shelf;
pub mod rack;
pub mod random;
mod retention;
pub mod run;
mod scheduler;
pub mod secret;
mod settings;
mod side_facts;
mod site;
mod topology;
mod turn;
pub mod watch;
mod watch_position;

pub use approval::Approvals;
pub use change::Change;
pub use device::{DescribedDevice, Devices, OverdueDevices, PlacedSpec};
pub use engine::Engine;
pub use explain::{Attention, AttentionItem, Explained};
pub use health::HealthReports;
pub use image::{DeletedImage, Images};
pub use machine::{DescribedMachine, Machines};
pub use notify::{NotifierStatus, Notifiers};
pub use plan::{PlanPage, Plans};
pub use power_shelf::{PowerShelves, ShelfPreview};
pub use retention::Retention;
pub use run::Runs;
pub use scheduler::Scheduler;
pub use settings::{NodeSettings, Settings};
pub use site::{SiteDescription, Sites};

/// The result of work whose failure is a fault of the run.
pub(crate) type FaultResult<T> = Result<T, model::fault::Fault>;
