//! Output on the machine's console.

use std::io::{self, Write};

/// Prints a line. A missing console is not an error.
pub fn print_line(line: &str) {
    if cfg!(test) {
        // The test runner captures only `println!`.
        return println!("farrier-agent: {line}");
    }
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "farrier-agent: {line}");
    let _ = out.flush();
}

/// Prints a warning to stderr, apart from the output of the command.
pub fn print_warning(line: &str) {
    eprintln!("farrier-agent: warning: {line}");
}

/// A size with a binary unit.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let power = (bytes.ilog2() / 10) as usize;
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[power - 1])
}
