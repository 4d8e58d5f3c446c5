//! Why the work ends early: it failed, in words for an operator, or it was told to stop.

use crate::wire::Code;
use std::fmt;
use std::io;

/// What went wrong: a code that Farrier knows, and one sentence that says where and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub said: String,
}

impl Failure {
    pub fn new(code: Code, said: impl Into<String>) -> Self {
        Self { code, said: said.into() }
    }

    /// The image is not what its kind says it is.
    pub fn broken(said: impl Into<String>) -> Self {
        Self::new(Code::ImageBroken, said)
    }

    /// The disk, or the system that was written to it, would not do what was asked.
    pub fn install(said: impl Into<String>) -> Self {
        Self::new(Code::InstallFailed, said)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// Farrier has told us to stop. That is no failure, and there is nothing to report.
    Stopped,
    Failed(Failure),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("told to stop"),
            Self::Failed(failure) => write!(f, "{} ({})", failure.said, failure.code.as_str()),
        }
    }
}

/// Lets a halt pass through code that only knows errors of reading; `halt_in` finds it again.
impl From<Halt> for io::Error {
    fn from(halt: Halt) -> Self {
        io::Error::other(Carried(halt))
    }
}

#[derive(Debug)]
struct Carried(Halt);

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Carried {}

/// The halt that an error of reading carries, if it does.
pub fn halt_in(error: &io::Error) -> Option<Halt> {
    error.get_ref()?.downcast_ref::<Carried>().map(|carried| carried.0.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_halt_survives_being_an_error_of_reading() {
        let halt = Halt::Failed(Failure::broken("no"));
        assert_eq!(halt_in(&io::Error::from(halt.clone())), Some(halt));
        assert_eq!(halt_in(&io::Error::other("no")), None);
        assert_eq!(halt_in(&io::ErrorKind::NotFound.into()), None);
    }
}
