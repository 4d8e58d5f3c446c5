//! Tests of the module `confined_fs` alone.

use agent::confined_fs::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// A name that does not exist at the root of any computer. Links out of the image point there,
/// so that a bug does no harm to the computer that runs the test.
const NOWHERE: &str = "farrier-agent-test-nowhere";

/// A system in a directory, beside a directory that must not be touched.
struct TestTree {
    top: tempfile::TempDir,
    inside: ConfinedRoot,
    me: FileOwner,
}

impl TestTree {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("image/etc")).unwrap();
        fs::create_dir_all(top.path().join("image").join(NOWHERE)).unwrap();
        fs::create_dir_all(top.path().join("outside")).unwrap();
        fs::write(top.path().join("outside/secret"), "untouched").unwrap();
        let inside = ConfinedRoot::open(&top.path().join("image")).unwrap();
        let me = inside.owner().unwrap();
        Self { top, inside, me }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.top.path().join("image").join(name)
    }

    fn outside_is_untouched(&self) {
        let outside = self.top.path().join("outside");
        let names: Vec<_> =
            fs::read_dir(&outside).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["secret"]);
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "untouched");
    }
}

#[test]
fn links_cannot_leave_the_root() {
    let fixture = TestTree::new();
    let outside = fixture.top.path().join("outside");
    symlink(&outside, fixture.path("absolute")).unwrap();
    symlink("../outside", fixture.path("relative")).unwrap();
    symlink(format!("../../../../../../../../{NOWHERE}"), fixture.path("climbing")).unwrap();
    symlink("loop", fixture.path("loop")).unwrap();
    for path in ["absolute", "relative", "/../outside", "../outside", "loop"] {
        assert!(fixture.inside.open_dir(path).is_err(), "{path}");
        assert!(fixture.inside.read(&format!("{path}/secret"), 100).is_err(), "{path}");
        assert!(!fixture.inside.has_file(&format!("{path}/secret")), "{path}");
    }
    // A link that climbs with `..` ends at the root of the image.
    fixture
        .inside
        .create_dir_all("/climbing", 0o755, fixture.me)
        .unwrap()
        .write("a", 0o644, fixture.me, b"1")
        .unwrap();
    assert_eq!(fs::read_to_string(fixture.path(NOWHERE).join("a")).unwrap(), "1");
    assert!(!Path::new("/").join(NOWHERE).exists());
    fixture.outside_is_untouched();
}

#[test]
fn directories_are_created_inside_only() {
    let fixture = TestTree::new();
    symlink(fixture.top.path().join("outside"), fixture.path("out")).unwrap();
    // The target of the link does not exist inside, so nothing can be created through it.
    assert!(fixture.inside.create_dir_all("/out/new", 0o755, fixture.me).is_err());
    fixture.inside.create_dir_all("/../../var/lib/x", 0o750, fixture.me).unwrap();
    assert_eq!(fs::metadata(fixture.path("var/lib/x")).unwrap().mode() & 0o7777, 0o750);
    assert!(fixture.inside.create_dir_all(&"/a".repeat(40), 0o755, fixture.me).is_err());
    fixture.outside_is_untouched();
}

#[test]
fn a_file_replaces_a_link() {
    let fixture = TestTree::new();
    let secret = fixture.top.path().join("outside/secret");
    for name in ["hostname", TEMP_NAME] {
        symlink(&secret, fixture.path(&format!("etc/{name}"))).unwrap();
    }
    let etc = fixture.inside.open_dir("/etc").unwrap();
    etc.write("hostname", 0o640, fixture.me, b"node-1\n").unwrap();
    let found = fs::symlink_metadata(fixture.path("etc/hostname")).unwrap();
    assert!(found.is_file() && found.mode() & 0o7777 == 0o640);
    assert_eq!(fixture.inside.read("/etc/hostname", 100).unwrap(), b"node-1\n");
    assert_eq!(
        etc.list_names().unwrap().iter().filter(|name| name.starts_with(".farrier")).count(),
        0
    );
    fixture.outside_is_untouched();
}

#[test]
fn links_are_not_own_directories() {
    let fixture = TestTree::new();
    let etc = fixture.inside.open_dir("/etc").unwrap();
    symlink(fixture.top.path().join("outside"), fixture.path("etc/.ssh")).unwrap();
    assert!(etc.ensure_dir(".ssh", 0o700, fixture.me).is_err());
    etc.remove(".ssh").unwrap();
    etc.ensure_dir(".ssh", 0o700, fixture.me).unwrap().write("a", 0o600, fixture.me, b"x").unwrap();
    fs::set_permissions(fixture.path("etc/.ssh"), fs::Permissions::from_mode(0o777)).unwrap();
    etc.ensure_dir(".ssh", 0o700, fixture.me).unwrap();
    assert_eq!(fs::metadata(fixture.path("etc/.ssh")).unwrap().mode() & 0o7777, 0o700);
    fixture.outside_is_untouched();
}

#[test]
fn only_short_regular_files_are_read() {
    let fixture = TestTree::new();
    fs::write(fixture.path("etc/long"), vec![b'x'; 101]).unwrap();
    assert!(fixture.inside.read("etc/long", 100).is_err());
    assert_eq!(fixture.inside.read("etc/long", 101).unwrap().len(), 101);
    assert!(fixture.inside.read("etc", 100).is_err());
    let fifo = std::process::Command::new("mkfifo").arg(fixture.path("etc/fifo")).status().unwrap();
    assert!(fifo.success());
    assert!(fixture.inside.read("etc/fifo", 100).is_err());
    assert!(fixture.inside.has_dir("etc") && !fixture.inside.has_file("etc"));
}
