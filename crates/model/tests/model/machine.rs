//! Tests of the parts of `model::machine`.

mod admit;
mod matcher;
mod view;
