//! The model as tables and walks: what a run may do, from every state it can reach.

mod act;
mod adopt;
mod aftermath;
mod devices;
mod explore;
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
