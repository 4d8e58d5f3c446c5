//! The meaning of a fault for an effect that was already started.

use model::fault::{EffectOutcome, Fault, FaultCode};

/// The fault of a failed read after an effect was started: the effect may have happened.
pub(crate) fn possibly_happened(fault: Fault) -> Fault {
    match fault.code.effect_outcome() {
        EffectOutcome::Unknown => fault,
        EffectOutcome::NotApplied if fault.code.peer_unreachable() => {
            Fault::new(FaultCode::AnswerLost, fault.message)
        }
        EffectOutcome::NotApplied => fault,
    }
}
