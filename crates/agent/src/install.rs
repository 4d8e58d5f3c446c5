//! Making the system that was written into this machine's own: its name, who may log in, the key it shows, and which image it is.

use crate::accounts;
use crate::console::say;
use crate::failure::Failure;
use crate::hands::{Hands, Tool};
use crate::host_key::HostKey;
use crate::inside::{Folder, Inside, Owner};
use crate::inventory::{self, Disk};
use crate::volume::{self, Content, FileSystem};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use wire::deploy::Assignment;

/// Distributions have three at most; who has more has them by mistake.
const MAX_PARTITIONS: usize = 128;
const MAX_PASSWD_BYTES: u64 = 4 * 1024 * 1024;
/// A device that was written to may be busy for a moment, and its partitions may show themselves a moment later.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);
const CLOUD_FOLDER: &str = "/etc/cloud";

/// Where it is done.
pub struct Site<'a> {
    pub hands: &'a dyn Hands,
    /// The root of `/sys` and `/dev`.
    pub root: &'a Path,
    pub disk: &'a Disk,
}

/// How sure it is that a file system holds the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    None,
    HasAccounts,
    NamesItself,
}

/// Something that can be mounted.
#[derive(Debug, Clone)]
pub struct Volume {
    pub device: PathBuf,
    pub kind: FileSystem,
    pub options: &'static str,
}

impl Site<'_> {
    pub fn device(&self) -> PathBuf {
        self.root.join("dev").join(&self.disk.name)
    }

    /// Lets the kernel see the partitions that were written.
    pub fn reread(&self) -> Result<(), Failure> {
        let device = self.device();
        let device = device.to_string_lossy();
        let mut tries = 1;
        loop {
            match self.hands.run(Tool::Blockdev, &["--rereadpt", &device], "") {
                Ok(()) => break,
                Err(_) if tries < TRIES => {
                    tries += 1;
                    thread::sleep(PAUSE);
                }
                Err(said) => {
                    let path = &self.disk.path;
                    return Err(Failure::install(format!(
                        "the partitions of {path} cannot be read: {said}"
                    )));
                }
            }
        }
        let there =
            || inventory::partitions(self.root, &self.disk.name).iter().all(|path| path.exists());
        for _ in 0..TRIES {
            if there() {
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Finds the system on the disk and makes it this machine's own. Answers the public host keys.
    pub fn install(&self, granted: &Assignment) -> Result<Vec<String>, Failure> {
        let root = self.find_root()?;
        say(&format!("the system is on {}", root.device.display()));
        let public = self.within(&root, "root", |at| furnish(&opened(at)?, granted))??;
        Ok(vec![public])
    }

    fn find_root(&self) -> Result<Volume, Failure> {
        let mut devices = inventory::partitions(self.root, &self.disk.name);
        devices.truncate(MAX_PARTITIONS);
        if devices.is_empty() {
            devices.push(self.device());
        }
        let mut best: Option<(Likeness, Volume)> = None;
        let mut seen = Vec::new();
        let mut mounted = false;
        for device in devices {
            let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let content = volume::look(&device).unwrap_or(Content::Unknown);
            seen.push(format!("{name}: {}", content.as_str()));
            let Content::Files(kind) = content else { continue };
            for options in kind.options() {
                let volume = Volume { device: device.clone(), kind, options };
                let alike =
                    self.within(&volume, "root", |at| opened(at).map(|inside| likeness(&inside)));
                match alike.flatten() {
                    Ok(likeness) => {
                        mounted = true;
                        if likeness > best.as_ref().map_or(Likeness::None, |(best, _)| *best) {
                            best = Some((likeness, volume));
                        }
                    }
                    // A part of a btrfs that is not there is no news.
                    Err(_) if !options.is_empty() => {}
                    Err(failure) => seen.push(failure.said),
                }
            }
        }
        best.map(|(_, volume)| volume).ok_or_else(|| self.no_root(mounted, &seen))
    }

    fn no_root(&self, mounted: bool, seen: &[String]) -> Failure {
        let (path, seen) = (&self.disk.path, seen.join(", "));
        let said = if mounted {
            format!(
                "no partition of {path} has a system in it (etc/os-release, usr/lib/os-release or etc/passwd); seen: {seen}"
            )
        } else {
            format!(
                "nothing on {path} can be mounted; seen: {seen}; an image has its root as ext4, xfs, btrfs or vfat"
            )
        };
        Failure::install(said)
    }

    /// Does something in a file system while it is mounted. The name keeps mounts apart that are there at the same time.
    pub fn within<T>(
        &self,
        volume: &Volume,
        name: &str,
        work: impl FnOnce(&Path) -> T,
    ) -> Result<T, Failure> {
        let failed = |what: &str, error: io::Error| {
            let device = volume.device.display();
            Failure::install(format!(
                "{device} ({}) cannot be {what}: {error}",
                volume.kind.as_str()
            ))
        };
        let at = self
            .hands
            .mount(&volume.device, volume.kind, volume.options, name)
            .map_err(|error| failed("mounted", error))?;
        let done = work(&at);
        self.hands.unmount(&at).map_err(|error| failed("unmounted", error))?;
        Ok(done)
    }
}

fn opened(at: &Path) -> Result<Inside, Failure> {
    Inside::open(at).map_err(|error| Failure::install(format!("the mounted system: {error}")))
}

fn likeness(inside: &Inside) -> Likeness {
    if inside.has_file("/etc/os-release") || inside.has_file("/usr/lib/os-release") {
        Likeness::NamesItself
    } else if inside.has_file("/etc/passwd") {
        Likeness::HasAccounts
    } else {
        Likeness::None
    }
}

/// Everything that is written into the system. Answers its public host key.
fn furnish(inside: &Inside, granted: &Assignment) -> Result<String, Failure> {
    let wrong = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failure::install(format!("{what} of the new system: {error}"))
    };
    let owner = inside.owner().map_err(wrong("the root folder"))?;
    let etc = inside.make_folder("/etc", 0o755, owner).map_err(wrong("/etc"))?;
    let hostname = format!("{}\n", granted.hostname);
    etc.write("hostname", 0o644, owner, hostname.as_bytes()).map_err(wrong("/etc/hostname"))?;
    authorize(inside, granted)?;
    let key = HostKey::make().map_err(|said| Failure::install(format!("no host key: {said}")))?;
    show_key(inside, owner, &key).map_err(wrong("/etc/ssh"))?;
    let stamp = format!("{}\n", granted.stamp.trim_end_matches('\n'));
    let farrier =
        inside.make_folder("/etc/farrier", 0o755, owner).map_err(wrong("/etc/farrier"))?;
    farrier.write("image", 0o644, owner, stamp.as_bytes()).map_err(wrong("/etc/farrier/image"))?;
    if inside.has_folder(CLOUD_FOLDER) {
        let folder = format!("{CLOUD_FOLDER}/cloud.cfg.d");
        let folder = inside.make_folder(&folder, 0o755, owner).map_err(wrong(&folder))?;
        let text = cloud_init(&granted.user);
        folder
            .write("99-farrier.cfg", 0o644, owner, text.as_bytes())
            .map_err(wrong("99-farrier.cfg"))?;
    }
    Ok(key.public)
}

/// Lets those log in who may.
fn authorize(inside: &Inside, granted: &Assignment) -> Result<(), Failure> {
    let user = &granted.user;
    let wrong = |what: &str, error: io::Error| {
        Failure::install(format!("{what} of the new system: {error}"))
    };
    let passwd = inside
        .read("/etc/passwd", MAX_PASSWD_BYTES)
        .map_err(|error| wrong("/etc/passwd", error))?;
    let accounts = accounts::parse(&String::from_utf8_lossy(&passwd));
    let Some(account) = accounts.iter().find(|account| account.name == *user) else {
        let people = accounts::people(&accounts);
        return Err(Failure::install(format!("the image has no user {user:?}; it has: {people}")));
    };
    if granted.authorized_keys.is_empty() {
        return Ok(());
    }
    if let Some(elsewhere) = mounted_later(inside, &account.home) {
        let home = &account.home;
        return Err(Failure::install(format!(
            "the home {home} of {user} lies on a file system of its own ({elsewhere} in /etc/fstab), which is not supported; \
             use another user or image"
        )));
    }
    let keys: String =
        granted.authorized_keys.iter().map(|key| format!("{}\n", key.trim())).collect();
    put_keys(inside, account, &keys).map_err(|error| {
        wrong(&format!("{}/.ssh/authorized_keys", account.home.trim_end_matches('/')), error)
    })
}

fn put_keys(inside: &Inside, account: &accounts::Account, keys: &str) -> io::Result<()> {
    let home: Folder = inside.make_folder(&account.home, 0o700, account.owner)?;
    let ssh = home.ensure(".ssh", 0o700, account.owner)?;
    ssh.write("authorized_keys", 0o600, account.owner, keys.as_bytes())
}

/// The mount point, other than the root, that will lie over a path once the system runs.
fn mounted_later(inside: &Inside, path: &str) -> Option<String> {
    let fstab = inside.read("/etc/fstab", MAX_PASSWD_BYTES).ok()?;
    let fstab = String::from_utf8_lossy(&fstab).into_owned();
    let points = fstab.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut points = points.filter_map(|line| line.split_whitespace().nth(1));
    let over = |point: &&str| {
        let point = point.trim_end_matches('/');
        point.starts_with('/')
            && path.strip_prefix(point).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    points.find(over).map(str::to_owned)
}

/// Puts the new host key in place of all others: those came with the image, and so everybody who has the image has them.
fn show_key(inside: &Inside, owner: Owner, key: &HostKey) -> io::Result<()> {
    let ssh = inside.make_folder("/etc/ssh", 0o755, owner)?;
    for name in
        ssh.names()?.iter().filter(|name| name.starts_with("ssh_host_") && name.contains("_key"))
    {
        ssh.remove(name)?;
    }
    ssh.write("ssh_host_ed25519_key", 0o600, owner, key.private.as_bytes())?;
    let public = format!("{}\n", key.public);
    ssh.write("ssh_host_ed25519_key.pub", 0o644, owner, public.as_bytes())
}

/// What cloud-init has to leave alone, and that there is no data source to wait for.
fn cloud_init(user: &str) -> String {
    let mut text = String::from(
        "# Written by Farrier when it installed this machine.\n\
         datasource_list: [None]\n\
         preserve_hostname: true\n\
         ssh_deletekeys: false\n\
         ssh_genkeytypes: [ed25519]\n",
    );
    if user == "root" {
        text += "disable_root: false\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use wire::deploy::{Image, ImageKind};

    fn granted(user: &str) -> Assignment {
        Assignment {
            run: "op-1".into(),
            machine: "m-1".into(),
            hostname: "node-1".into(),
            user: user.into(),
            authorized_keys: vec!["ssh-ed25519 AAAA one\n".into(), "ssh-ed25519 BBBB two".into()],
            root_disk: String::new(),
            image: Image {
                name: "tiny".into(),
                kind: ImageKind::Raw,
                url: "/deploy/image".into(),
                sha256: String::new(),
                size: 0,
            },
            stamp: "debian-12 0123".into(),
        }
    }

    /// A small system in a folder, whose users are whoever runs the test.
    fn system() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let me = fs::metadata(root).unwrap();
        for sub in ["etc/ssh", "etc/cloud", "usr/lib", "root"] {
            fs::create_dir_all(root.join(sub)).unwrap();
        }
        fs::write(root.join("usr/lib/os-release"), "ID=tiny\n").unwrap();
        symlink("../usr/lib/os-release", root.join("etc/os-release")).unwrap();
        let (user, group) = (me.uid(), me.gid());
        let passwd = format!(
            "root:x:{user}:{group}::/root:/bin/sh\nann:x:{user}:{group}::/srv/ann:/bin/sh\n\
             eve:x:{user}:{group}::/../../../../../../farrier-agent-test-nowhere:/bin/sh\n"
        );
        fs::write(root.join("etc/passwd"), passwd).unwrap();
        for key in [
            "ssh_host_rsa_key",
            "ssh_host_rsa_key.pub",
            "ssh_host_ed25519_key-cert.pub",
            "sshd_config",
        ] {
            fs::write(root.join("etc/ssh").join(key), "old").unwrap();
        }
        folder
    }

    fn furnished(root: &Path, user: &str) -> Result<String, Failure> {
        furnish(&Inside::open(root).unwrap(), &granted(user))
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn the_system_becomes_this_machines_own() {
        let folder = system();
        let root = folder.path();
        let public = furnished(root, "root").unwrap();
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(text("etc/hostname"), "node-1\n");
        assert_eq!(text("etc/farrier/image"), "debian-12 0123\n");
        assert_eq!(
            text("root/.ssh/authorized_keys"),
            "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\n"
        );
        assert_eq!(mode(&root.join("root/.ssh")), 0o700);
        assert_eq!(mode(&root.join("root/.ssh/authorized_keys")), 0o600);
        assert_eq!(mode(&root.join("etc/ssh/ssh_host_ed25519_key")), 0o600);
        assert_eq!(text("etc/ssh/ssh_host_ed25519_key.pub"), format!("{public}\n"));
        let names = Inside::open(root).unwrap().folder("/etc/ssh").unwrap().names().unwrap();
        let names: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| !name.starts_with('.')).collect();
        assert_eq!(names, ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "sshd_config"]);
        let cloud = text("etc/cloud/cloud.cfg.d/99-farrier.cfg");
        for line in [
            "ssh_deletekeys: false",
            "preserve_hostname: true",
            "datasource_list: [None]",
            "disable_root: false",
        ] {
            assert!(cloud.contains(line), "{cloud}");
        }
    }

    #[test]
    fn a_home_is_made_where_there_is_none_and_never_outside() {
        let folder = system();
        let root = folder.path();
        furnished(root, "ann").unwrap();
        assert_eq!(mode(&root.join("srv/ann/.ssh/authorized_keys")), 0o600);
        furnished(root, "eve").unwrap();
        assert!(root.join("farrier-agent-test-nowhere/.ssh/authorized_keys").exists());
        assert!(!Path::new("/farrier-agent-test-nowhere").exists());
    }

    #[test]
    fn without_cloud_init_there_is_no_word_to_it() {
        let folder = system();
        fs::remove_dir(folder.path().join("etc/cloud")).unwrap();
        furnished(folder.path(), "root").unwrap();
        assert!(!folder.path().join("etc/cloud").exists());
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        type Case = (&'static str, fn(&Path), &'static str);
        let cases: [Case; 5] = [
            ("bob", |_| (), "no user \"bob\"; it has: "),
            ("root", |root| fs::remove_file(root.join("etc/passwd")).unwrap(), "/etc/passwd"),
            (
                "root",
                |root| symlink("/farrier-agent-test-nowhere", root.join("root/.ssh")).unwrap(),
                ".ssh/authorized_keys of the new system",
            ),
            (
                "ann",
                |root| {
                    fs::write(root.join("etc/fstab"), "# no\nUUID=1 / ext4\nUUID=2 /srv xfs\n")
                        .unwrap()
                },
                "(/srv in /etc/fstab)",
            ),
            (
                "root",
                |root| {
                    fs::remove_dir_all(root.join("etc/ssh")).unwrap();
                    symlink("/farrier-agent-test-nowhere", root.join("etc/ssh")).unwrap();
                },
                "/etc/ssh of the new system",
            ),
        ];
        for (user, spoil, words) in cases {
            let folder = system();
            spoil(folder.path());
            let failure = furnished(folder.path(), user).unwrap_err();
            assert!(failure.said.contains(words), "{}", failure.said);
        }
    }

    #[test]
    fn only_what_lies_over_a_home_matters() {
        for (fstab, home, over) in [
            ("UUID=1 / ext4", "/srv/ann", false),
            ("UUID=1 /srv ext4", "/srv/ann", true),
            ("UUID=1 /srv/ ext4", "/srv/ann", true),
            ("UUID=1 /srv ext4", "/srvs/ann", false),
            ("UUID=1 /srv/ann ext4", "/srv/ann", true),
            ("UUID=1 none swap", "/srv/ann", false),
            ("UUID=1 /boot/efi vfat", "/root", false),
            ("# UUID=1 /srv ext4", "/srv/ann", false),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("etc")).unwrap();
            fs::write(folder.path().join("etc/fstab"), fstab).unwrap();
            let inside = Inside::open(folder.path()).unwrap();
            assert_eq!(mounted_later(&inside, home).is_some(), over, "{fstab} {home}");
        }
    }
}
