//! Keeps the memory of the server, which holds secrets, out of core dumps and of debuggers of the
//! same user, and makes its new files private.

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit, umask};

/// A failure is logged and does not stop the server: containers may forbid the calls.
pub fn keep_memory_private() {
    umask(Mode::RWXG | Mode::RWXO);
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps cannot be switched off");
    }
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "the process stays readable by debuggers of its user");
    }
}
