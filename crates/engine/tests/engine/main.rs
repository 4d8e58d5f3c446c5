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
mod audit;
mod board;
mod chaos;
mod clients;
mod components;
mod crash;
mod device_fixture;
mod device_scenarios;
mod gate;
mod hosts;
mod injection;
mod machine_scenarios;
mod matrix;
mod node_doors;
mod node_scenarios;
mod node_watch;
mod nodes;
mod parts;
mod rack_trouble;
mod rack_world;
mod racks;
mod retention;
mod scenario;
mod shelves;
mod small_print;
mod workers;
mod world;
