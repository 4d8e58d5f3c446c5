//! Random bytes from the kernel. The call blocks until the entropy pool is ready, which may take a
//! while after boot.

use crate::image::hex;
use rustix::rand::{GetRandomFlags, getrandom};

const SECRET_BYTES: usize = 32;

pub fn random_bytes() -> Result<[u8; SECRET_BYTES], String> {
    let mut bytes = [0; SECRET_BYTES];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(SECRET_BYTES) => Ok(bytes),
        Ok(count) => Err(format!("the kernel gave {count} random bytes")),
        Err(error) => Err(format!("the kernel gives no random bytes: {error}")),
    }
}

/// The secret session of this boot: 64 hexadecimal digits.
pub fn new_session() -> Result<String, String> {
    random_bytes().map(|bytes| hex(&bytes))
}

/// A random UUID.
pub fn new_uuid() -> Result<String, String> {
    let mut bytes = random_bytes()?;
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    let text = hex(&bytes[..16]);
    let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    Ok(parts.join("-"))
}
