//! Compressed clusters: each is compressed separately and expands to exactly one cluster.

use super::header::{Compression, Header};
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::Read;

/// The limit of a zstd window; clusters need less.
const MAX_WINDOW_BYTES: u64 = 16 * 1024 * 1024;

/// Decompresses clusters into one reused buffer.
pub struct Unpacker {
    room: Vec<u8>,
    how: How,
}

enum How {
    Zlib(Box<Decompress>),
    Zstd(Box<FrameDecoder>),
}

impl Unpacker {
    pub fn new(header: &Header) -> Self {
        let how = match header.compression {
            // Raw deflate, without header and checksum.
            Compression::Zlib => How::Zlib(Box::new(Decompress::new(false))),
            Compression::Zstd => {
                let mut decoder = FrameDecoder::new();
                decoder.set_max_window_size(MAX_WINDOW_BYTES);
                How::Zstd(Box::new(decoder))
            }
        };
        Self { room: vec![0; header.cluster_size() as usize], how }
    }

    /// Other data may follow the compressed cluster: its length is known only to a sector.
    pub fn unpack(&mut self, packed: &[u8]) -> Result<&[u8], String> {
        match &mut self.how {
            How::Zlib(inflate) => {
                inflate.reset(false);
                let done = inflate.decompress(packed, &mut self.room, FlushDecompress::Finish);
                let whole = inflate.total_out() == self.room.len() as u64;
                match done {
                    Ok(Status::StreamEnd | Status::Ok | Status::BufError) if whole => {}
                    Ok(_) => return Err("it ends before a whole cluster is unpacked".into()),
                    Err(error) => return Err(error.to_string()),
                }
            }
            How::Zstd(decoder) => {
                let mut reader = StreamingDecoder::new_with_decoder(packed, &mut **decoder)
                    .map_err(|error| error.to_string())?;
                reader.read_exact(&mut self.room).map_err(|error| error.to_string())?;
            }
        }
        Ok(&self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compress, FlushCompress};

    fn header(compression: Compression) -> Header {
        Header { version: 3, cluster_bits: 16, size: 1 << 20, table_at: 1 << 16, compression }
    }

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut packed = Vec::with_capacity(bytes.len() + 1024);
        let mut deflate = Compress::new(flate2::Compression::default(), false);
        deflate.compress_vec(bytes, &mut packed, FlushCompress::Finish).unwrap();
        packed
    }

    #[test]
    fn one_after_the_other_is_unpacked_whatever_follows_it() {
        let mut unpacker = Unpacker::new(&header(Compression::Zlib));
        for fill in [1_u8, 2, 3] {
            let cluster: Vec<u8> = (0..65_536_u32).map(|at| (at / 7) as u8 ^ fill).collect();
            let mut packed = deflated(&cluster);
            packed.extend([0xFF; 300]);
            assert!(unpacker.unpack(&packed).unwrap() == cluster);
        }
    }

    #[test]
    fn what_is_cut_short_or_garbage_is_refused() {
        for compression in [Compression::Zlib, Compression::Zstd] {
            let mut unpacker = Unpacker::new(&header(compression));
            assert!(unpacker.unpack(&[0xFF; 4000]).is_err());
            assert!(unpacker.unpack(&[]).is_err());
        }
        let mut unpacker = Unpacker::new(&header(Compression::Zlib));
        let packed = deflated(&(0..65_536_u32).map(|at| (at * 7) as u8).collect::<Vec<_>>());
        assert!(unpacker.unpack(&packed[..packed.len() / 2]).is_err());
        assert!(unpacker.unpack(&deflated(&[1; 65_535])).is_err(), "less than a cluster");
        assert!(unpacker.unpack(&packed).is_ok(), "and it goes on with the next");
    }
}
