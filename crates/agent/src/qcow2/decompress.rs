//! Compressed clusters: each is compressed separately and expands to exactly one cluster.

use super::header::{Compression, Header};
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::Read;

/// The limit of a zstd window; clusters need less.
const MAX_WINDOW_BYTES: u64 = 16 * 1024 * 1024;

/// Decompresses clusters into one reused buffer.
pub struct ClusterDecompressor {
    buffer: Vec<u8>,
    codec: Codec,
}

enum Codec {
    Zlib(Box<Decompress>),
    Zstd(Box<FrameDecoder>),
}

impl ClusterDecompressor {
    pub fn new(header: &Header) -> Self {
        let codec = match header.compression {
            // Raw deflate, without header and checksum.
            Compression::Zlib => Codec::Zlib(Box::new(Decompress::new(false))),
            Compression::Zstd => {
                let mut decoder = FrameDecoder::new();
                decoder.set_max_window_size(MAX_WINDOW_BYTES);
                Codec::Zstd(Box::new(decoder))
            }
        };
        Self { buffer: vec![0; header.cluster_size() as usize], codec }
    }

    /// Other data may follow the compressed cluster: its length is known only to a sector.
    pub fn decompress(&mut self, packed: &[u8]) -> Result<&[u8], String> {
        match &mut self.codec {
            Codec::Zlib(inflate) => {
                inflate.reset(false);
                let done = inflate.decompress(packed, &mut self.buffer, FlushDecompress::Finish);
                let complete = inflate.total_out() == self.buffer.len() as u64;
                match done {
                    Ok(Status::StreamEnd | Status::Ok | Status::BufError) if complete => {}
                    Ok(_) => return Err("it ends before a whole cluster is unpacked".into()),
                    Err(error) => return Err(error.to_string()),
                }
            }
            Codec::Zstd(decoder) => {
                let mut reader = StreamingDecoder::new_with_decoder(packed, &mut **decoder)
                    .map_err(|error| error.to_string())?;
                reader.read_exact(&mut self.buffer).map_err(|error| error.to_string())?;
            }
        }
        Ok(&self.buffer)
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
    fn clusters_decompress_with_trailing_data() {
        let mut decompressor = ClusterDecompressor::new(&header(Compression::Zlib));
        for fill in [1_u8, 2, 3] {
            let cluster: Vec<u8> = (0..65_536_u32).map(|at| (at / 7) as u8 ^ fill).collect();
            let mut packed = deflated(&cluster);
            packed.extend([0xFF; 300]);
            assert!(decompressor.decompress(&packed).unwrap() == cluster);
        }
    }

    #[test]
    fn corrupt_clusters_are_refused() {
        for compression in [Compression::Zlib, Compression::Zstd] {
            let mut decompressor = ClusterDecompressor::new(&header(compression));
            assert!(decompressor.decompress(&[0xFF; 4000]).is_err());
            assert!(decompressor.decompress(&[]).is_err());
        }
        let mut decompressor = ClusterDecompressor::new(&header(Compression::Zlib));
        let packed = deflated(&(0..65_536_u32).map(|at| (at * 7) as u8).collect::<Vec<_>>());
        assert!(decompressor.decompress(&packed[..packed.len() / 2]).is_err());
        assert!(decompressor.decompress(&deflated(&[1; 65_535])).is_err(), "less than a cluster");
        assert!(decompressor.decompress(&packed).is_ok(), "and it goes on with the next");
    }
}
