//! Tests of the module `image` alone.

use agent::deploy_client::RequestError;
use agent::failure::{DeployError, Failure};
use agent::image::*;
use agent::status::{DeployStatus, FinalAction};
use agent::timing::Timing;
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::io::Read;
use wire::deploy::DeploymentFailure;

/// Bytes in memory. Each connection breaks after the next number of `cuts`; when there is none
/// left, connections last.
pub struct FlakySource {
    pub bytes: Vec<u8>,
    pub cuts: RefCell<Vec<usize>>,
}

impl FlakySource {
    pub fn without_faults(bytes: Vec<u8>) -> Self {
        Self { bytes, cuts: RefCell::default() }
    }
}

impl ImageSource for FlakySource {
    fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, RequestError> {
        let rest = &self.bytes[from as usize..];
        match self.cuts.borrow_mut().pop() {
            Some(0) => Err(RequestError::Retryable("away".into())),
            Some(cut) => Ok(Box::new(&rest[..cut.min(rest.len())])),
            None => Ok(Box::new(rest)),
        }
    }
}

/// Intervals without pauses, for tests.
pub fn timing_without_pauses() -> Timing {
    let none = std::time::Duration::ZERO;
    Timing { pause: none, longest_pause: none, ..Timing::for_tests() }
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

proptest! {
    #[test]
    fn broken_connections_change_nothing(
        bytes in proptest::collection::vec(any::<u8>(), 0..5_000),
        cuts in proptest::collection::vec(0..900_usize, 0..20),
        piece in 1..700_usize,
    ) {
        let source = FlakySource { bytes: bytes.clone(), cuts: cuts.into() };
        let (status, timing) = (DeployStatus::default(), timing_without_pauses());
        let reading = ReadContext { source: &source, size: bytes.len() as u64, status: &status, timing: &timing };
        let mut stream = ImageStream::new(reading);
        let mut content = Vec::new();
        let mut buffer = vec![0; piece];
        loop {
            let count = stream.fill(&mut buffer).unwrap();
            if count == 0 { break }
            content.extend_from_slice(&buffer[..count]);
        }
        prop_assert_eq!(&content, &bytes);
        prop_assert_eq!(stream.finish(&sha256(&bytes)), Ok(()));
    }

    #[test]
    fn seeks_reach_any_offset(
        places in proptest::collection::vec((0..600_000_u64, 1..2_000_usize), 1..12),
        cuts in proptest::collection::vec(0..100_000_usize, 0..6),
    ) {
        let bytes: Vec<u8> = (0..600_000_u32).map(|at| (at % 251) as u8).collect();
        let source = FlakySource { bytes: bytes.clone(), cuts: cuts.into() };
        let (status, timing) = (DeployStatus::default(), timing_without_pauses());
        let reading = ReadContext { source: &source, size: bytes.len() as u64, status: &status, timing: &timing };
        let mut reader = ResumingReader::new(reading);
        for (at, length) in places {
            reader.seek(at).unwrap();
            let mut found = vec![0; length];
            let count = reader.fill(&mut found).unwrap();
            let end = (at as usize + length).min(bytes.len());
            prop_assert_eq!(&found[..count], &bytes[at as usize..end]);
        }
    }
}

#[test]
fn wrong_checksums_are_refused() {
    let source = FlakySource::without_faults(vec![7; 100]);
    let (status, timing) = (DeployStatus::default(), timing_without_pauses());
    let reading = ReadContext { source: &source, size: 100, status: &status, timing: &timing };
    let halt = ImageStream::new(reading).finish(&sha256(b"else")).unwrap_err();
    assert!(matches!(
        halt,
        DeployError::Failed(Failure { code: DeploymentFailure::ChecksumWrong, .. })
    ));
    assert_eq!(ImageStream::new(reading).finish(&sha256(&[7; 100]).to_uppercase()), Ok(()));
}

#[test]
fn reads_stop_on_request() {
    let source = FlakySource::without_faults(vec![7; 100]);
    let (status, timing) = (DeployStatus::default(), timing_without_pauses());
    status.finish_with(FinalAction::PowerOff);
    let reading = ReadContext { source: &source, size: 100, status: &status, timing: &timing };
    assert_eq!(ResumingReader::new(reading).read(&mut [0; 10]), Err(DeployError::Stopped));
}
