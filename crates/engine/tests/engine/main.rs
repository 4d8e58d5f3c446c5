//! Tests of the engine in one process: misbehaving workers, and crashes at every point.
//!
//! `matrix` runs every [`scenario`] with every [`injection`] at every crash point; `chaos` picks at
//! random. Both run in a [`test_env`] with simulated time. Every commit and provider call of a
//! process passes a [`fault_injector`] that can crash the process there.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod admission;
mod agent_scenarios;
mod approvals;
mod attention;
mod audit;
mod chaos;
mod child_runs;
mod clients;
mod component;
mod crash;
mod device_fixture;
mod device_records;
mod device_scenarios;
mod disk_writes;
mod fault_injector;
mod guarantees;
mod hosts;
mod injection;
mod left_behind;
mod machine_scenarios;
mod matrix;
mod node_gates;
mod node_returns;
mod node_scenarios;
mod node_supervision;
mod nodes;
mod notices;
mod power_shelves;
mod previews;
mod rack_failures;
mod rack_fixture;
mod racks;
mod refusals;
mod retention;
mod scenario;
mod shared_value;
mod test_env;
mod workers;
