//! The store suite: the same promises, kept by both databases.

#[macro_use]
mod harness;

mod bus;
mod claims;
mod dry_run;
mod events;
mod filters;
mod firmware;
mod health;
mod kept;
mod logs;
mod machines;
mod nodes;
mod opening;
mod paging;
mod plans;
mod records;
mod replicas;
mod retention;
mod runs;
mod settling;
mod snapshots;
mod writer;
