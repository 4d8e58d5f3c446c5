//! Tests of the module `node::config` alone.

use agent::node::config::*;
use secrecy::ExposeSecret;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const LEAST: &str = "controllers = [\"http://10.0.0.1:8480\"]\n";

fn with(line: &str) -> Result<Config, String> {
    Config::parse(&format!("{LEAST}{line}\n"))
}

#[test]
fn example_has_the_defaults() {
    let example = Config::parse(EXAMPLE).unwrap();
    let least = Config::parse(LEAST).unwrap();
    assert_eq!(example.state_dir, least.state_dir);
    assert_eq!(example.hooks_dir, least.hooks_dir);
    assert_eq!(example.nvidia_smi, least.nvidia_smi);
    assert_eq!(example.pci_devices, least.pci_devices);
    assert_eq!(example.systemctl, least.systemctl);
    assert_eq!(example.unit, least.unit);
    assert!(least.scratch_dirs.is_none() && matches!(least.token, Token::None));
    assert_eq!(with("scratch_dirs = []").unwrap().scratch_dirs, Some(Vec::new()));
    for key in ["controllers", "token", "token_file", "scratch_dirs"] {
        assert!(EXAMPLE.contains(key), "{key} is not in the example");
    }
}

#[test]
fn errors_name_the_key() {
    for (line, key) in [
        ("scratch_dir = []", "scratch_dir"),
        ("token = \"a\"\ntoken_file = \"/t\"", "token_file"),
        ("token = \"a b\"", "token:"),
        ("token = \"\"", "token:"),
        ("token_file = \"t\"", "token_file:"),
        ("state_dir = \"var\"", "state_dir:"),
        ("state_dir = \"/etc\"", "state_dir:"),
        ("state_dir = \"/\"", "state_dir:"),
        ("hooks_dir = \"/etc/../hooks\"", "hooks_dir:"),
        ("nvidia_smi = \"nvidia-smi\"", "nvidia_smi:"),
        ("systemctl = \"./systemctl\"", "systemctl:"),
        ("unit = \"--all\"", "unit:"),
        ("unit = \"agent\"", "unit:"),
        ("client_key = \"/k\"", "client_certificate is missing"),
        ("client_certificate = \"/c\"", "client_key is missing"),
        ("client_certificate = \"/c\"\nclient_key = \"/k\"", "ca_file"),
    ] {
        let message = with(line).unwrap_err();
        assert!(message.contains(key), "{line}: {message}");
    }
    for (text, name) in [
        ("", "controllers"),
        ("controllers = []", "between 1 and 16"),
        ("controllers = [\"https://farrier.example\"]", "controllers: "),
        ("controllers = [\"https://10.0.0.1\"]", "ca_file is missing"),
        ("controllers = [\"https://10.0.0.1\"]\nca_file = \"ca.pem\"", "ca_file:"),
        ("controllers = 1", "controllers"),
    ] {
        let message = Config::parse(text).unwrap_err();
        assert!(message.contains(name), "{text}: {message}");
    }
    assert!(!with("token = \"geheim geheim\"").unwrap_err().contains("geheim"));
}

#[test]
fn errors_do_not_repeat_values() {
    for (line, key) in [
        ("token = \"geheim", "token"),
        ("token = geheim", "token"),
        ("token = \"a\" geheim", "token"),
        ("token_file = [\"geheim\"]", "token_file"),
        ("scratch_dirs = \"geheim\"", "scratch_dirs"),
        ("geheim==", "line 2"),
        ("geheim", "line 2"),
        ("token = 12_geheim", "token"),
    ] {
        let message = with(line).unwrap_err();
        assert!(!message.contains("geheim"), "{line}: {message}");
        assert!(message.contains("line 2") && message.contains(key), "{line}: {message}");
    }
}

#[test]
fn readable_tokens_cause_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (file, token) = (folder.path().join("agent.toml"), folder.path().join("token"));
    for path in [&file, &token] {
        fs::write(path, format!("{LEAST}token = \"t\"\n")).unwrap();
    }
    let named = with(&format!("token_file = {:?}", token.display())).unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for (bits, exposed) in [(0o600, false), (0o640, true), (0o644, true), (0o400, false)] {
        mode(&file, bits);
        mode(&token, bits);
        for config in [&Config::load(&file).unwrap(), &named] {
            let message = config.exposed_token_warning();
            assert_eq!(message.is_some(), exposed, "{bits:o}: {message:?}");
            assert!(message.is_none_or(|message| message.contains("chmod 600 /")));
        }
    }
    fs::remove_file(&token).unwrap();
    assert!(
        named.exposed_token_warning().is_none()
            && Config::parse(LEAST).unwrap().exposed_token_warning().is_none()
    );
}

#[test]
fn system_directories_cannot_be_scratch() {
    for dir in [
        "/",
        "//",
        "/etc",
        "/etc/",
        "/usr/local",
        "/root",
        "/dev",
        "/dev/disk",
        "/var",
        "/var/lib",
        "/home",
        "/boot/efi",
        "/proc/1",
        "/lib64",
        "scratch",
        "/a/../etc",
        "/a/./b",
        "/a//b",
        "/var/lib/farrier-agent",
        "/var/lib/farrier-agent/x",
    ] {
        let message = with(&format!("scratch_dirs = [{dir:?}]")).err();
        assert!(
            message.as_ref().is_some_and(|s| s.starts_with("scratch_dirs")),
            "{dir}: {message:?}"
        );
    }
    for dir in ["/scratch", "/dev/shm", "/mnt/nvme", "/var/lib/docker", "/tmp", "/libs"] {
        with(&format!("scratch_dirs = [{dir:?}]")).unwrap();
    }
    let message = with("hooks_dir = \"/data/hooks\"\nscratch_dirs = [\"/data\"]").unwrap_err();
    assert!(message.contains("hooks_dir (/data/hooks)"), "{message}");
}

#[test]
fn token_file_is_read_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let token = with(&format!("token_file = {:?}", file.display())).unwrap().token;
    assert!(token.read().unwrap().is_none());
    for text in ["one", "two"] {
        fs::write(&file, format!("{text}\n")).unwrap();
        assert_eq!(token.read().unwrap().unwrap().expose_secret(), text);
    }
    fs::write(&file, "two words").unwrap();
    assert!(token.read().unwrap_err().contains("token_file"));
}
