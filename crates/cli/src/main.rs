//! The `farrier` binary. Everything is in the library: Cargo compiles a library beside the crates
//! that it uses, and a binary only after them.

use std::process::ExitCode;

fn main() -> ExitCode {
    farrier::run()
}
