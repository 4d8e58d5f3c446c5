//! Tests of the parts of `model::machine`.

mod admit;
mod delete;
mod matcher;
mod view;
