//! Tests of the parts of `model::rack`.

mod power;
