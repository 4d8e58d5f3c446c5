//! The engine in one process: workers that misbehave, and the proof that it can be killed anywhere.
//!
//! `matrix` is the proof by cases, `chaos` the proof by chance. Both happen in a [`world`] of simulated
//! time, where each process stands behind a [`gate`] at which it can be struck.

mod audit;
mod board;
mod chaos;
mod clients;
mod gate;
mod hosts;
mod lives;
mod matrix;
mod retention;
mod small_print;
mod workers;
mod world;
