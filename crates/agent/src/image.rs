//! Reading an image over connections that may break at any byte.
//!
//! A [`Tap`] reads on from where it stopped, however often it has to connect for that. A [`Stream`] is a tap that reads the whole
//! once, keeps the hash of what passed, and says how far it is. Neither holds more than what it was asked to read.

use crate::console::say;
use crate::failure::{Failure, Halt};
use crate::farrier::{Missed, spoken};
use crate::pace::{Pace, Pauses};
use crate::status::{End, Status};
use sha2::{Digest, Sha256};
use std::io::Read;
use wire::deploy::FailureCode;

/// Where an image comes from.
pub trait Source {
    /// Begins to read at a byte. What is read may be cut anywhere, and then it is opened again.
    fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, Missed>;
}

/// An image to be read, and those who have a say in it.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    pub source: &'a dyn Source,
    pub size: u64,
    pub status: &'a Status,
    pub pace: &'a Pace,
}

pub struct Tap<'a> {
    reading: Reading<'a>,
    position: u64,
    open: Option<Box<dyn Read + 'a>>,
    pauses: Pauses,
}

impl<'a> Tap<'a> {
    pub fn new(reading: Reading<'a>) -> Self {
        Self { reading, position: 0, open: None, pauses: Pauses::new(reading.pace) }
    }

    /// Goes elsewhere. A short way forward is read past, which costs less than a new connection.
    pub fn seek(&mut self, to: u64) -> Result<(), Halt> {
        const SHORT_BYTES: u64 = 256 * 1024;
        if self.open.is_some() && to >= self.position && to - self.position <= SHORT_BYTES {
            let mut piece = [0; 16 * 1024];
            while self.position < to {
                let most = (to - self.position).min(piece.len() as u64) as usize;
                if self.read(&mut piece[..most])? == 0 {
                    break;
                }
            }
        }
        if self.position != to {
            self.open = None;
            self.position = to;
        }
        Ok(())
    }

    /// Reads some bytes. Zero: the image has ended.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Halt> {
        let left = self.reading.size.saturating_sub(self.position);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        if most == 0 {
            return Ok(0);
        }
        // Without end on purpose: Farrier may be away for as long as it likes, and says when to stop.
        loop {
            self.reading.status.check()?;
            let Some(open) = &mut self.open else {
                self.reopen()?;
                continue;
            };
            let cut = match open.read(&mut into[..most]) {
                Ok(0) => "the image ended too early".to_string(),
                Ok(count) => {
                    self.position += count as u64;
                    self.pauses.worked();
                    return Ok(count);
                }
                Err(error) => error.to_string(),
            };
            self.open = None;
            self.wait(&cut)?;
        }
    }

    /// Reads until the buffer is full or the image has ended.
    pub fn fill(&mut self, into: &mut [u8]) -> Result<usize, Halt> {
        let mut full = 0;
        while full < into.len() {
            match self.read(&mut into[full..])? {
                0 => break,
                count => full += count,
            }
        }
        Ok(full)
    }

    fn reopen(&mut self) -> Result<(), Halt> {
        match self.reading.source.open(self.position) {
            Ok(open) => {
                self.open = Some(open);
                Ok(())
            }
            Err(Missed::Again(said)) => self.wait(&said),
            Err(Missed::Wrong(said)) => Err(Failure::broken(format!("image: {said}")).into()),
            Err(Missed::Refused(refusal)) => {
                say(&format!("image refused: {}", spoken(&refusal)));
                self.reading.status.end(End::PowerOff);
                Err(Halt::Stopped)
            }
        }
    }

    fn wait(&mut self, said: &str) -> Result<(), Halt> {
        self.reading.status.check()?;
        say(&format!("image: {said}; going on from byte {}", self.position));
        self.pauses.take(self.reading.status);
        self.reading.status.check()
    }
}

/// The whole image, once, from beginning to end.
pub struct Stream<'a> {
    tap: Tap<'a>,
    hash: Sha256,
    halted: Option<Halt>,
}

impl<'a> Stream<'a> {
    pub fn new(reading: Reading<'a>) -> Self {
        Self { tap: Tap::new(reading), hash: Sha256::new(), halted: None }
    }

    pub fn position(&self) -> u64 {
        self.tap.position
    }

    /// Why it could not be read, where whoever read only knows that it could not.
    pub fn halted(&self) -> Option<Halt> {
        self.halted.clone()
    }

    /// Fills the buffer; less is read only at the end. Whoever asks for more has dealt with what was handed out before.
    pub fn fill(&mut self, into: &mut [u8]) -> Result<usize, Halt> {
        self.tap.reading.status.progress(self.tap.position);
        let count = self.tap.fill(into)?;
        self.hash.update(&into[..count]);
        Ok(count)
    }

    /// Reads what nobody wanted, and compares the hash of everything.
    pub fn finish(mut self, sha256: &str) -> Result<(), Halt> {
        let mut piece = vec![0; 256 * 1024];
        while self.fill(&mut piece)? > 0 {}
        let found = hex(&self.hash.finalize());
        if found.eq_ignore_ascii_case(sha256) {
            return Ok(());
        }
        let said = format!(
            "the image that arrived has the SHA-256 {found} and should have {sha256}; \
             compare the file with its entry in the catalogue"
        );
        Err(Failure::new(FailureCode::ChecksumWrong, said).into())
    }
}

/// For those who only know how to read: decompressors, and pipes to other programs.
impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.tap.reading.status.progress(self.tap.position);
        match self.tap.read(into) {
            Ok(count) => {
                self.hash.update(&into[..count]);
                Ok(count)
            }
            Err(halt) => {
                let error = std::io::Error::other(halt.to_string());
                self.halted = Some(halt);
                Err(error)
            }
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// Bytes in memory that are cut after so many bytes, connection by connection, and then no more.
    pub struct Flaky {
        pub bytes: Vec<u8>,
        pub cuts: RefCell<Vec<usize>>,
    }

    impl Flaky {
        pub fn steady(bytes: Vec<u8>) -> Self {
            Self { bytes, cuts: RefCell::default() }
        }
    }

    impl Source for Flaky {
        fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, Missed> {
            let rest = &self.bytes[from as usize..];
            match self.cuts.borrow_mut().pop() {
                Some(0) => Err(Missed::Again("away".into())),
                Some(cut) => Ok(Box::new(&rest[..cut.min(rest.len())])),
                None => Ok(Box::new(rest)),
            }
        }
    }

    /// Pauses that cost a test nothing.
    pub fn hurried() -> Pace {
        let none = std::time::Duration::ZERO;
        Pace { pause: none, longest_pause: none, ..Pace::for_tests() }
    }

    pub fn sha256(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(
            bytes in proptest::collection::vec(any::<u8>(), 0..5_000),
            cuts in proptest::collection::vec(0..900_usize, 0..20),
            piece in 1..700_usize,
        ) {
            let source = Flaky { bytes: bytes.clone(), cuts: cuts.into() };
            let (status, pace) = (Status::default(), hurried());
            let reading = Reading { source: &source, size: bytes.len() as u64, status: &status, pace: &pace };
            let mut stream = Stream::new(reading);
            let mut whole = Vec::new();
            let mut buffer = vec![0; piece];
            loop {
                let count = stream.fill(&mut buffer).unwrap();
                if count == 0 { break }
                whole.extend_from_slice(&buffer[..count]);
            }
            prop_assert_eq!(&whole, &bytes);
            prop_assert_eq!(stream.finish(&sha256(&bytes)), Ok(()));
        }

        #[test]
        fn any_place_can_be_looked_up(
            places in proptest::collection::vec((0..600_000_u64, 1..2_000_usize), 1..12),
            cuts in proptest::collection::vec(0..100_000_usize, 0..6),
        ) {
            let bytes: Vec<u8> = (0..600_000_u32).map(|at| (at % 251) as u8).collect();
            let source = Flaky { bytes: bytes.clone(), cuts: cuts.into() };
            let (status, pace) = (Status::default(), hurried());
            let reading = Reading { source: &source, size: bytes.len() as u64, status: &status, pace: &pace };
            let mut tap = Tap::new(reading);
            for (at, length) in places {
                tap.seek(at).unwrap();
                let mut found = vec![0; length];
                let count = tap.fill(&mut found).unwrap();
                let end = (at as usize + length).min(bytes.len());
                prop_assert_eq!(&found[..count], &bytes[at as usize..end]);
            }
        }
    }

    #[test]
    fn another_hash_is_refused() {
        let source = Flaky::steady(vec![7; 100]);
        let (status, pace) = (Status::default(), hurried());
        let reading = Reading { source: &source, size: 100, status: &status, pace: &pace };
        let halt = Stream::new(reading).finish(&sha256(b"else")).unwrap_err();
        assert!(matches!(halt, Halt::Failed(Failure { code: FailureCode::ChecksumWrong, .. })));
        assert_eq!(Stream::new(reading).finish(&sha256(&[7; 100]).to_uppercase()), Ok(()));
    }

    #[test]
    fn an_order_to_stop_is_obeyed() {
        let source = Flaky::steady(vec![7; 100]);
        let (status, pace) = (Status::default(), hurried());
        status.end(End::PowerOff);
        let reading = Reading { source: &source, size: 100, status: &status, pace: &pace };
        assert_eq!(Tap::new(reading).read(&mut [0; 10]), Err(Halt::Stopped));
    }
}
