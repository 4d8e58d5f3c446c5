//! The engine in one process: workers that misbehave, and the proof that it can be killed anywhere.
//!
//! `matrix` is the proof by cases: every [`scenario`] with every [`injection`] at every crash point.
//! `chaos` is the proof by random choice. Both run in a [`world`] of simulated time, where everything a
//! process does passes a [`gate`] at which it can be crashed.

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
