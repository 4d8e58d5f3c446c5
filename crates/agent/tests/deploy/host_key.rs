//! Tests of the module `host_key` alone.

use agent::host_key::*;
use ssh_key::PrivateKey;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn host_keys_are_unique() {
    let (one, other) = (HostKey::generate().unwrap(), HostKey::generate().unwrap());
    assert_ne!(one.public, other.public);
    assert!(one.public.starts_with("ssh-ed25519 AAAA"), "{}", one.public);
    let read = PrivateKey::from_openssh(&one.private).unwrap();
    assert_eq!(read.public_key().to_openssh().unwrap().trim_end(), one.public);
}

/// OpenSSH reads the file and derives the same public key.
#[test]
fn openssh_reads_host_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let key = HostKey::generate().unwrap();
    fs::write(&path, &key.private).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let Ok(output) = Command::new("ssh-keygen").arg("-y").arg("-f").arg(&path).output() else {
        eprintln!("skipped: there is no ssh-keygen here");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), key.public);
}
