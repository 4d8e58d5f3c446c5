//! The model as tables and exhaustive walks: what a run may do from every reachable state.

mod act;
mod adopt;
mod aftermath;
mod devices;
mod host;
mod invariants;
mod nodes;
mod pages;
mod racks;
mod states;
mod stored;
mod support;
mod walk;
mod why;
