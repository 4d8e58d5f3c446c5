//! The engine in one process: workers that misbehave, and the proof that it can be killed anywhere.
//!
//! `matrix` is the proof by cases, `chaos` the proof by chance. Both happen in a [`world`] of simulated
//! time, where each process stands behind a [`gate`] at which it can be struck. `rack_matrix` is the same proof for records with a
//! lifecycle and for operations with parts.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod agent_lives;
mod audit;
mod board;
mod chaos;
mod clients;
mod components;
mod gate;
mod hosts;
mod lives;
mod matrix;
mod node_doors;
mod node_lives;
mod node_watch;
mod nodes;
mod parts;
mod rack_lives;
mod rack_matrix;
mod rack_trouble;
mod rack_world;
mod racks;
mod retention;
mod shelves;
mod small_print;
mod workers;
mod world;
