//! The meaning of a fault for an effect that was already started, and the errors that are faults of
//! this host and not of the peer.

use model::fault::{EffectOutcome, Fault, FaultCode};
use rustix::io::Errno;
use std::error::Error;
use std::fmt;
use std::io;

/// The most nested causes of an error that are examined.
const MAX_CAUSES: usize = 16;

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

/// A resource of this host that has run out. The call was not made, so nothing is known about the
/// peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalShortage {
    /// The limit of this process (EMFILE).
    FileDescriptors,
    /// The limit of the whole host (ENFILE).
    OpenFiles,
    Memory,
    /// Every local port towards this peer is in use, or no address of this host can reach it.
    Ports,
    Processes,
}

impl LocalShortage {
    pub fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(Self::FileDescriptors),
            Errno::NFILE => Some(Self::OpenFiles),
            Errno::NOMEM | Errno::NOBUFS => Some(Self::Memory),
            Errno::ADDRNOTAVAIL => Some(Self::Ports),
            // From connect: no free port. From fork: no more processes.
            Errno::AGAIN => Some(Self::Processes),
            _ => None,
        }
    }

    /// The shortage among an error and its causes.
    pub fn among(error: &(dyn Error + 'static)) -> Option<Self> {
        causes(error).find_map(|cause| cause.downcast_ref::<io::Error>().and_then(Self::of))
    }

    /// The fault of a call to this peer that was not made.
    pub fn fault(self, peer: &dyn fmt::Display) -> Fault {
        Fault::new(FaultCode::LocalResources, format!("{peer} was not asked: {self}"))
    }
}

impl fmt::Display for LocalShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FileDescriptors => "the Farrier server has too many open files",
            Self::OpenFiles => "the host of the Farrier server has too many open files",
            Self::Memory => "the host of the Farrier server is out of memory",
            Self::Ports => "the host of the Farrier server has no free port or address for it",
            Self::Processes => "the host of the Farrier server has no room for another process",
        })
    }
}

/// The error and its sources.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| source_of(*error)).take(MAX_CAUSES)
}

/// `io::Error::source` skips the error that it wraps.
fn source_of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages_of_this_host_are_told_from_failures_of_the_peer() {
        for (errno, expected) in [
            (Errno::MFILE, Some(LocalShortage::FileDescriptors)),
            (Errno::NFILE, Some(LocalShortage::OpenFiles)),
            (Errno::NOMEM, Some(LocalShortage::Memory)),
            (Errno::NOBUFS, Some(LocalShortage::Memory)),
            (Errno::ADDRNOTAVAIL, Some(LocalShortage::Ports)),
            (Errno::AGAIN, Some(LocalShortage::Processes)),
            (Errno::CONNREFUSED, None),
            (Errno::CONNRESET, None),
            (Errno::HOSTUNREACH, None),
            (Errno::NETUNREACH, None),
            (Errno::TIMEDOUT, None),
            (Errno::NOENT, None),
        ] {
            let error = io::Error::from(errno);
            assert_eq!(LocalShortage::of(&error), expected, "{error}");
            let wrapped = io::Error::other(io::Error::from(errno));
            assert_eq!(LocalShortage::among(&wrapped), expected, "{error}");
        }
        assert_eq!(LocalShortage::of(&io::Error::other("words")), None);
        let fault = LocalShortage::FileDescriptors.fault(&"https://bmc");
        assert!(fault.code.is_local() && fault.code.peer_unreachable(), "{fault}");
        assert!(fault.message.starts_with("https://bmc was not asked: "), "{fault}");
    }
}
