//! Runs the fuzz target that FARRIER_FUZZ_TARGET names.
#![no_main]

mod targets;

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FARRIER_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("FARRIER_FUZZ_TARGET names no target: {name:?}")).1
});

fuzz_target!(|data: &[u8]| (*TARGET)(data));
