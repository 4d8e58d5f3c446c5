//! The meaning of a fault for an effect that was already started.

use model::fault::{Code, Fault, Happened};

/// The fault of a failed read after an effect was started: the effect may have happened.
pub(crate) fn possibly_happened(fault: Fault) -> Fault {
    match fault.code.happened() {
        Happened::Maybe => fault,
        Happened::No if fault.code.unseen() => Fault::new(Code::AnswerLost, fault.said),
        Happened::No => fault,
    }
}
