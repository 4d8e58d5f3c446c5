//! Decompresses a tar: plain, gzip or zstd, detected by its first bytes.

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Cursor, Read};

const GZIP: &[u8] = &[0x1F, 0x8B];
const ZSTD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];
/// Common compressions that are not supported.
const OTHERS: [(&[u8], &str); 3] =
    [(b"\xFD7zXZ\0", "xz"), (b"BZh", "bzip2"), (&[4, 0x22, 0x4D, 0x18], "lz4")];
const PEEK_BYTES: usize = 6;
const BUFFER_BYTES: usize = 128 * 1024;
/// Enough for the highest usual zstd level. Larger windows must be requested when compressing, and
/// may not fit into the memory of a small machine.
const MAX_WINDOW_BYTES: u64 = 128 * 1024 * 1024;

/// The plain tar.
pub fn open_tar<'a>(mut packed: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut first = Vec::new();
    (&mut packed).take(PEEK_BYTES as u64).read_to_end(&mut first)?;
    if let Some((_, name)) = OTHERS.iter().find(|(mark, _)| first.starts_with(mark)) {
        return Err(io::Error::other(format!(
            "it is packed with {name}; use gzip, zstd or nothing"
        )));
    }
    let (gzip, zstd) = (first.starts_with(GZIP), first.starts_with(ZSTD));
    let complete = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(first).chain(packed));
    Ok(match (gzip, zstd) {
        (true, _) => Box::new(MultiGzDecoder::new(complete)),
        (false, true) => Box::new(Zstd::new(complete)),
        (false, false) => Box::new(complete),
    })
}

/// Decodes concatenated frames, as multi-threaded compressors write them.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        Self { source, decoder }
    }

    /// Begins the next frame. False: there is none.
    fn next_frame(&mut self) -> io::Result<bool> {
        // Skippable frames are skipped. Each has at least a header, so the loop ends.
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            let mut magic = [0; 4];
            self.source.read_exact(&mut magic)?;
            let number = u32::from_le_bytes(magic);
            if number & 0xFFFF_FFF0 != 0x184D_2A50 {
                let frame = Cursor::new(magic).chain(&mut self.source);
                self.decoder.reset(frame).map_err(io::Error::other)?;
                return Ok(true);
            }
            let mut length = [0; 4];
            self.source.read_exact(&mut length)?;
            let length = u64::from(u32::from_le_bytes(length));
            let passed = io::copy(&mut (&mut self.source).take(length), &mut io::sink())?;
            if passed < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.decoder.can_collect() == 0 {
            if self.decoder.is_finished() {
                if !self.next_frame()? {
                    return Ok(0);
                }
            } else {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
            }
        }
        self.decoder.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::write::GzEncoder;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn content() -> Vec<u8> {
        (0..3_000_000_u32).map(|at| ((at / 100 * 7) ^ (at % 13)) as u8).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn opened(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut complete = Vec::new();
        open_tar(packed)?.read_to_end(&mut complete)?;
        Ok(complete)
    }

    /// Compresses with an external program. None: it is not installed.
    fn packed_by(program: &str, arguments: &[&str], bytes: &[u8]) -> Option<Vec<u8>> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut input = child.stdin.take()?;
        let bytes = bytes.to_vec();
        let feeding = std::thread::spawn(move || input.write_all(&bytes));
        let output = child.wait_with_output().ok()?;
        feeding.join().ok()?.ok()?;
        Some(output.stdout)
    }

    #[test]
    fn plain_and_gzip_are_detected() {
        let content = content();
        assert!(opened(&content).unwrap() == content);
        assert!(opened(&gzip(&content)).unwrap() == content);
        let (one, other) = content.split_at(1_000_000);
        assert!(opened(&[gzip(one), gzip(other)].concat()).unwrap() == content, "several members");
        assert_eq!(opened(b"").unwrap(), b"");
        assert_eq!(opened(b"abc").unwrap(), b"abc");
    }

    #[test]
    fn zstd_is_unpacked_frame_by_frame() {
        let content = content();
        let zstd = |arguments: &[&str], bytes: &[u8]| packed_by("zstd", arguments, bytes);
        let (one, other) = content.split_at(1_000_000);
        for arguments in [&["-1"][..], &["-19"], &["-T2", "-B512K"], &["--no-check"]] {
            let (Some(one), Some(other)) = (zstd(arguments, one), zstd(arguments, other)) else {
                return eprintln!("skipped: there is no zstd here");
            };
            let skippable =
                [&0x184D_2A53_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), b"hello"].concat();
            assert!(opened(&[one.clone(), skippable, other.clone()].concat()).unwrap() == content);
            assert!(opened(&[&one[..], &other[..other.len() / 2]].concat()).is_err());
        }
    }

    #[test]
    fn other_compressions_are_refused() {
        for (mark, name) in OTHERS {
            let message = opened(&[mark, &[0; 100]].concat()).unwrap_err().to_string();
            assert!(
                message.contains(name) && message.contains("use gzip, zstd or nothing"),
                "{message}"
            );
        }
        let packed = gzip(&content());
        assert!(opened(&packed[..packed.len() / 2]).is_err());
        assert!(opened(&[ZSTD, &[0xFF; 100]].concat()).is_err());
    }
}
