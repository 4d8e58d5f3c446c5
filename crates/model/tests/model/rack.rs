//! Tests of the parts of `model::rack`.

mod ingestion;
mod power;
