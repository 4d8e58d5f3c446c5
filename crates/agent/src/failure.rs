//! Why the work ends early: it failed, in words for an operator, or it was told to stop.

use std::fmt;
use wire::deploy::FailureCode;

/// What went wrong: a code that Farrier knows, and one sentence that says where and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: FailureCode,
    pub said: String,
}

impl Failure {
    pub fn new(code: FailureCode, said: impl Into<String>) -> Self {
        Self { code, said: said.into() }
    }

    /// The image is not what its kind says it is.
    pub fn broken(said: impl Into<String>) -> Self {
        Self::new(FailureCode::ImageBroken, said)
    }

    /// The disk, or the system that was written to it, would not do what was asked.
    pub fn install(said: impl Into<String>) -> Self {
        Self::new(FailureCode::InstallFailed, said)
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
