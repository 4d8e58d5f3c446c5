//! Tests of the parts of `model::filter`.

mod parse;
