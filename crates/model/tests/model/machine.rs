//! Tests of the parts of `model::machine`.

mod admit;
mod hardware;
mod matcher;
mod view;
