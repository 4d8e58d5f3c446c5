//! Splits log chunks into lines.
//!
//! A chunk may end in the middle of a line or of a character. Bytes are buffered until their line
//! is complete, separately for each step and stream, because these interleave.

use crate::text::one_line;
use proto::v1::LogChunk;
use std::collections::BTreeMap;

/// The maximum length of an output line in bytes; a longer log line is printed in pieces.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// The incomplete lines, by step and stream.
#[derive(Default)]
pub struct LogLineBuffer {
    partial: BTreeMap<(String, String), Vec<u8>>,
}

impl LogLineBuffer {
    /// The lines that this chunk completes, formatted for output.
    pub fn push(&mut self, chunk: &LogChunk) -> Vec<String> {
        let buffer = self.partial.entry((chunk.step.clone(), chunk.stream.clone())).or_default();
        let mut lines = Vec::new();
        for &byte in chunk.data.iter() {
            if byte == b'\n' {
                lines.push(format_log_line(&chunk.step, buffer));
                buffer.clear();
                continue;
            }
            buffer.push(byte);
            if buffer.len() >= MAX_LINE_BYTES {
                lines.push(format_log_line(&chunk.step, buffer));
                buffer.clear();
            }
        }
        lines
    }

    /// The remaining lines that have no newline.
    pub fn finish(&mut self) -> Vec<String> {
        let partial = std::mem::take(&mut self.partial);
        let unfinished = partial.iter().filter(|(_, bytes)| !bytes.is_empty());
        unfinished.map(|((step, _), bytes)| format_log_line(step, bytes)).collect()
    }
}

fn format_log_line(step: &str, line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let tag = if step.is_empty() { "run" } else { step };
    format!("│ [{}] {}", one_line(tag), one_line(&String::from_utf8_lossy(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(step: &str, stream: &str, data: &[u8]) -> LogChunk {
        LogChunk {
            step: step.into(),
            stream: stream.into(),
            data: data.to_vec(),
            ..Default::default()
        }
    }

    #[test]
    fn lines_are_whole_and_tagged() {
        let mut lines = LogLineBuffer::default();
        assert_eq!(lines.push(&chunk("repave", "stdout", b"Progress: 4")), [""; 0]);
        assert_eq!(lines.push(&chunk("repave", "stderr", b"warning\n")), ["│ [repave] warning"]);
        assert_eq!(
            lines.push(&chunk("repave", "stdout", b"5%\r\ndone \xe2\x9c")),
            ["│ [repave] Progress: 45%"]
        );
        assert_eq!(
            lines.push(&chunk("repave", "stdout", b"\x93\n\n")),
            ["│ [repave] done ✓", "│ [repave] "]
        );
        assert_eq!(lines.finish(), [""; 0]);
    }

    #[test]
    fn device_output_is_not_trusted() {
        let mut lines = LogLineBuffer::default();
        assert_eq!(
            lines.push(&chunk("", "stdout", b"\x1b]0;owned\x07\xff\n")),
            ["│ [run] \\x1b]0;owned\\x07\u{fffd}"]
        );
        assert_eq!(lines.push(&chunk("a", "stdout", b"no end")), [""; 0]);
        assert_eq!(lines.finish(), ["│ [a] no end"]);
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut lines = LogLineBuffer::default();
        assert_eq!(lines.push(&chunk("a", "stdout", &vec![b'x'; MAX_LINE_BYTES * 2 + 1])).len(), 2);
        assert_eq!(lines.finish(), ["│ [a] x"]);
    }
}
