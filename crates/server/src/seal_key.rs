//! The master keys of this server: from the environment, from a command, or from a file.
//!
//! A source gives 32 bytes as they are, or text with one key per line, in hexadecimal digits or in
//! base64. The first key protects everything new. The others only open what they protected before,
//! until `farrier secret rotate` has replaced them.

use crate::config::Config;
use crate::private_files::create_whole;
use crate::serve::ServeError;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use engine::secret::{Cipher, KEY_BYTES, KeyBytes, TokenKeys, random_key};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

pub const VARIABLE: &str = "FARRIER_SEAL_KEY";
/// The most keys of one source, and the most bytes.
const MAX_KEYS: usize = 8;
const MAX_BYTES: u64 = 4_096;
const FORMS: &str = "give 32 bytes, or one key per line as 64 hexadecimal digits or as base64";

/// The master keys, and how the keys of tokens begin if the database has none. `sealed` is whether
/// the database has values that need a master key which exists already.
pub fn load(config: &Config, sealed: bool) -> Result<(Cipher, TokenKeys), ServeError> {
    load_from(config, std::env::var(VARIABLE).ok().map(Zeroizing::new), sealed)
        .map_err(ServeError::Refused)
}

fn load_from(
    config: &Config,
    variable: Option<Zeroizing<String>>,
    sealed: bool,
) -> Result<(Cipher, TokenKeys), String> {
    if let Some(text) = variable {
        let keys = parse(text.as_bytes()).map_err(|why| format!("{VARIABLE} {why}"))?;
        return Ok((cipher(keys), TokenKeys::OfOlderFarrier));
    }
    if !config.seal_key_command.is_empty() {
        let output = run(&config.seal_key_command)
            .and_then(|output| parse(&output))
            .map_err(|why| format!("the output of seal_key_command {why}"))?;
        return Ok((cipher(output), TokenKeys::OfOlderFarrier));
    }
    let path = config.seal_key();
    let wrong = |why: String| format!("the key file {} {why}", path.display());
    match read(&path) {
        Ok(bytes) => {
            check_mode(&path).map_err(wrong)?;
            Ok((cipher(parse(&bytes).map_err(wrong)?), TokenKeys::OfOlderFarrier))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && sealed => Err(wrong(
            "is missing, and the database has secrets that only this key opens; copy it from \
             another replica or from its backup, or name it with seal_key_file; \
             docs/operate/backup.md says what to do if it is lost for ever"
                .into(),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (key, made) = make(&path).map_err(|error| {
                wrong(format!("cannot be made: {error}; choose another seal_key_file"))
            })?;
            let tokens = if made { TokenKeys::Random } else { TokenKeys::OfOlderFarrier };
            Ok((cipher(parse(&key).map_err(wrong)?), tokens))
        }
        Err(error) => Err(wrong(format!("cannot be read: {error}"))),
    }
}

fn cipher((first, others): (KeyBytes, Vec<KeyBytes>)) -> Cipher {
    Cipher::with_masters(first, others)
}

fn read(path: &Path) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::new());
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first key and the others. The error quotes nothing of them.
fn parse(bytes: &[u8]) -> Result<(KeyBytes, Vec<KeyBytes>), String> {
    if let Ok(raw) = <[u8; KEY_BYTES]>::try_from(bytes) {
        return Ok((Zeroizing::new(raw), Vec::new()));
    }
    let length = bytes.len();
    let text = std::str::from_utf8(bytes);
    let text = text.map_err(|_| format!("has {length} bytes and not {KEY_BYTES}; {FORMS}"))?;
    let mut keys = Vec::new();
    for (index, line) in text.split(['\n', ',']).map(str::trim).enumerate() {
        if !line.is_empty() {
            let number = index + 1;
            keys.push(key(line).ok_or_else(|| format!("has no key in line {number}; {FORMS}"))?);
        }
    }
    if keys.is_empty() || keys.len() > MAX_KEYS {
        let count = keys.len();
        return Err(format!("has {count} keys; give at least one and at most {MAX_KEYS}"));
    }
    let others = keys.split_off(1);
    keys.pop().map(|first| (first, others)).ok_or_else(|| format!("has no key; {FORMS}"))
}

fn key(line: &str) -> Option<KeyBytes> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    if line.len() == 2 * KEY_BYTES && line.is_ascii() {
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&line[2 * index..2 * index + 2], 16).ok()?;
        }
        return Some(key);
    }
    let decoded = Zeroizing::new(BASE64_STANDARD.decode(line).ok()?);
    if decoded.len() != KEY_BYTES {
        return None;
    }
    key.copy_from_slice(&decoded);
    Some(key)
}

/// Runs the command without a shell. Its errors go to our standard error.
fn run(command: &[String]) -> Result<Zeroizing<Vec<u8>>, String> {
    let (program, arguments) = command.split_first().ok_or("is empty")?;
    let mut child = Command::new(program);
    child.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).stdout(Stdio::piped());
    let mut child = child.spawn().map_err(|error| format!("is missing: {program}: {error}"))?;
    let mut output = Zeroizing::new(Vec::new());
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(MAX_BYTES).read_to_end(&mut output);
        read.map_err(|error| format!("cannot be read: {error}"))?;
    }
    let status = child.wait().map_err(|error| format!("is missing: {error}"))?;
    match status.success() {
        true => Ok(output),
        false => Err(format!("is missing: {program} ended with {status}")),
    }
}

/// Refuses a key that other users can read. A key of our own is made private instead.
fn check_mode(path: &Path) -> Result<(), String> {
    let mode = path.metadata().map_err(|error| format!("cannot be read: {error}"))?;
    let mode = mode.permissions().mode() & 0o777;
    // A group may read it: a mounted secret belongs to root and to the group of the service.
    if mode & 0o037 == 0 {
        return Ok(());
    }
    let private = std::fs::Permissions::from_mode(0o600);
    if std::fs::set_permissions(path, private).is_ok() {
        let path = path.display();
        tracing::warn!(%path, mode = format!("{mode:o}"), "the seal key was readable by others; it has the mode 600 now");
        return Ok(());
    }
    Err(format!("has the mode {mode:o}, so other users can read it; chmod 600 {}", path.display()))
}

/// Makes a key file that only this user can read. False: another process made it first.
fn make(path: &Path) -> std::io::Result<(Zeroizing<Vec<u8>>, bool)> {
    let key = random_key();
    match create_whole(path, key.as_slice()) {
        Ok(()) => Ok((Zeroizing::new(key.to_vec()), true)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok((read(path)?, false)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_every_form() {
        let hex = "07".repeat(KEY_BYTES);
        let base64 = BASE64_STANDARD.encode([8; KEY_BYTES]);
        for (text, first, others) in [
            (vec![7; KEY_BYTES], 7, 0),
            (hex.clone().into_bytes(), 7, 0),
            (format!("{hex}\n").into_bytes(), 7, 0),
            (format!("{base64}\n{hex}\n\n").into_bytes(), 8, 1),
            (format!("{hex},{base64}").into_bytes(), 7, 1),
        ] {
            let (key, more) = parse(&text).unwrap();
            assert_eq!((key[0], more.len()), (first, others));
        }
        for wrong in ["", "\n", "short", &hex[1..], &format!("{hex}\nxyz"), &"zz".repeat(32)] {
            let message = parse(wrong.as_bytes()).unwrap_err();
            assert!(!message.contains("xyz") && message.contains("give"), "{message}");
        }
        assert!(parse(&[0xff; 31]).unwrap_err().contains("has 31 bytes and not 32"));
        let many = format!("{hex}\n").repeat(MAX_KEYS + 1);
        assert!(parse(many.as_bytes()).unwrap_err().contains("at most 8"));
    }

    fn config(dir: &Path) -> Config {
        Config { data_dir: dir.into(), ..Config::default() }
    }

    #[test]
    fn a_missing_key_is_made_only_beside_an_empty_database() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let file = dir.path().join("seal.key");
        let message = load_from(&config, None, true).map(drop).unwrap_err();
        assert!(message.contains("or from its backup"), "{message}");
        assert!(!file.exists());
        let (made, tokens) = load_from(&config, None, false).unwrap();
        assert_eq!(tokens, TokenKeys::Random);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let (again, tokens) = load_from(&config, None, true).unwrap();
        assert_eq!(again.master_id(), made.master_id());
        assert_eq!(tokens, TokenKeys::OfOlderFarrier);
        std::fs::write(&file, "short").unwrap();
        let message = load_from(&config, None, true).map(drop).unwrap_err();
        assert!(message.contains("seal.key") && message.contains("32 bytes"), "{message}");
    }

    #[test]
    fn the_environment_wins_over_the_command_and_the_command_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        let of_file = load_from(&config, None, false).unwrap().0;
        let text = "05".repeat(KEY_BYTES);
        config.seal_key_command = vec!["echo".into(), text.clone()];
        let of_command = load_from(&config, None, true).unwrap().0;
        let variable = Some(Zeroizing::new("06".repeat(KEY_BYTES)));
        let of_variable = load_from(&config, variable, true).unwrap().0;
        assert_eq!(of_command.master_id(), Cipher::new(&[5; KEY_BYTES]).master_id());
        assert_eq!(of_variable.master_id(), Cipher::new(&[6; KEY_BYTES]).master_id());
        assert_ne!(of_file.master_id(), of_command.master_id());
        config.seal_key_command = vec!["false".into()];
        let message = load_from(&config, None, true).map(drop).unwrap_err();
        assert!(message.contains("seal_key_command"), "{message}");
    }

    #[test]
    fn a_key_that_others_can_read_is_made_private() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        load_from(&config, None, false).unwrap();
        let file = dir.path().join("seal.key");
        for (mode, after) in [(0o644, 0o600), (0o660, 0o600), (0o440, 0o440), (0o600, 0o600)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            load_from(&config, None, true).unwrap();
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, after);
        }
    }
}
