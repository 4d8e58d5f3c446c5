//! Tests of the module `console` alone.

use agent::console::*;

#[test]
fn sizes_have_binary_units() {
    for (bytes, message) in [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (8 << 30, "8.0 GiB"),
        (u64::MAX, "15.9 EiB"),
    ] {
        assert_eq!(format_size(bytes), message);
    }
}
