//! Tests of the parts of `model::machine`.

mod admit;
mod delete;
mod hardware;
mod matcher;
mod view;
