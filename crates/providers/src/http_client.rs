//! What the providers that speak HTTP share.
//!
//! `form` encodes query parameters and form bodies.

pub(crate) mod form;
