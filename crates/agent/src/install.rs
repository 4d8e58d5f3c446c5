//! Configures the written system for this machine: hostname, authorized keys, host key, and image
//! stamp.

use crate::accounts;
use crate::confined_fs::{ConfinedDir, ConfinedRoot, FileOwner};
use crate::console::print_line;
use crate::failure::Failure;
use crate::host_key::HostKey;
use crate::inventory::{self, DiskInfo};
use crate::platform::{Platform, Tool};
use crate::volume::{self, FileSystem, PartitionContent};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use wire::deploy::Assignment;

/// Distributions have three at most; more indicate an error.
const MAX_PARTITIONS: usize = 128;
const MAX_PASSWD_BYTES: u64 = 4 * 1024 * 1024;
/// A device may be busy for a moment after writing, and its partitions may appear a moment later.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);
const CLOUD_FOLDER: &str = "/etc/cloud";

/// The disk that the system is installed on, and the means to do it.
pub struct InstallTarget<'a> {
    pub platform: &'a dyn Platform,
    /// The directory that contains `sys` and `dev`.
    pub root: &'a Path,
    pub disk: &'a DiskInfo,
}

/// The evidence that a file system is the root of the system, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RootLikelihood {
    None,
    HasAccounts,
    NamesItself,
}

/// A file system that can be mounted.
#[derive(Debug, Clone)]
pub struct MountableVolume {
    pub device: PathBuf,
    pub kind: FileSystem,
    pub options: &'static str,
}

impl InstallTarget<'_> {
    pub fn device(&self) -> PathBuf {
        self.root.join("dev").join(&self.disk.name)
    }

    /// Makes the kernel reread the partition table.
    pub fn reread_partitions(&self) -> Result<(), Failure> {
        let device = self.device();
        let device = device.to_string_lossy();
        let mut tries = 1;
        loop {
            match self.platform.run(Tool::Blockdev, &["--rereadpt", &device], "") {
                Ok(()) => break,
                Err(_) if tries < TRIES => {
                    tries += 1;
                    thread::sleep(PAUSE);
                }
                Err(message) => {
                    let path = &self.disk.path;
                    return Err(Failure::install_failed(format!(
                        "the partitions of {path} cannot be read: {message}"
                    )));
                }
            }
        }
        let there = || {
            inventory::list_partitions(self.root, &self.disk.name).iter().all(|path| path.exists())
        };
        for _ in 0..TRIES {
            if there() {
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Finds the system on the disk and configures it for this machine. Returns the public host
    /// keys.
    pub fn install(&self, granted: &Assignment) -> Result<Vec<String>, Failure> {
        let root = self.find_root()?;
        print_line(&format!("the system is on {}", root.device.display()));
        let public =
            self.with_mounted(&root, "root", |at| configure_system(&open_root(at)?, granted))??;
        Ok(vec![public])
    }

    fn find_root(&self) -> Result<MountableVolume, Failure> {
        let mut devices = inventory::list_partitions(self.root, &self.disk.name);
        devices.truncate(MAX_PARTITIONS);
        if devices.is_empty() {
            devices.push(self.device());
        }
        let mut best: Option<(RootLikelihood, MountableVolume)> = None;
        let mut observed = Vec::new();
        let mut mounted = false;
        for device in devices {
            let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let content = volume::detect_content(&device).unwrap_or(PartitionContent::Unknown);
            observed.push(format!("{name}: {}", content.as_str()));
            let PartitionContent::Mountable(kind) = content else { continue };
            for options in kind.options() {
                let volume = MountableVolume { device: device.clone(), kind, options };
                let alike = self.with_mounted(&volume, "root", |at| {
                    open_root(at).map(|inside| root_likelihood(&inside))
                });
                match alike.flatten() {
                    Ok(likeness) => {
                        mounted = true;
                        if likeness > best.as_ref().map_or(RootLikelihood::None, |(best, _)| *best)
                        {
                            best = Some((likeness, volume));
                        }
                    }
                    // A missing btrfs subvolume is not an error.
                    Err(_) if !options.is_empty() => {}
                    Err(failure) => observed.push(failure.message),
                }
            }
        }
        best.map(|(_, volume)| volume).ok_or_else(|| self.no_root_failure(mounted, &observed))
    }

    fn no_root_failure(&self, mounted: bool, observed: &[String]) -> Failure {
        let (path, observed) = (&self.disk.path, observed.join(", "));
        let message = if mounted {
            format!(
                "no partition of {path} has a system in it (etc/os-release, usr/lib/os-release or etc/passwd); seen: {observed}"
            )
        } else {
            format!(
                "nothing on {path} can be mounted; seen: {observed}; an image has its root as ext4, xfs, btrfs or vfat"
            )
        };
        Failure::install_failed(message)
    }

    /// Runs `work` while the file system is mounted. The name distinguishes concurrent mounts.
    pub fn with_mounted<T>(
        &self,
        volume: &MountableVolume,
        name: &str,
        work: impl FnOnce(&Path) -> T,
    ) -> Result<T, Failure> {
        let failed = |what: &str, error: io::Error| {
            let device = volume.device.display();
            Failure::install_failed(format!(
                "{device} ({}) cannot be {what}: {error}",
                volume.kind.as_str()
            ))
        };
        let at = self
            .platform
            .mount(&volume.device, volume.kind, volume.options, name)
            .map_err(|error| failed("mounted", error))?;
        let done = work(&at);
        self.platform.unmount(&at).map_err(|error| failed("unmounted", error))?;
        Ok(done)
    }
}

fn open_root(at: &Path) -> Result<ConfinedRoot, Failure> {
    ConfinedRoot::open(at)
        .map_err(|error| Failure::install_failed(format!("the mounted system: {error}")))
}

fn root_likelihood(inside: &ConfinedRoot) -> RootLikelihood {
    if inside.has_file("/etc/os-release") || inside.has_file("/usr/lib/os-release") {
        RootLikelihood::NamesItself
    } else if inside.has_file("/etc/passwd") {
        RootLikelihood::HasAccounts
    } else {
        RootLikelihood::None
    }
}

/// Writes all files of the configuration. Returns the public host key.
fn configure_system(inside: &ConfinedRoot, granted: &Assignment) -> Result<String, Failure> {
    let wrong = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| {
            Failure::install_failed(format!("{what} of the new system: {error}"))
        }
    };
    let owner = inside.owner().map_err(wrong("the root folder"))?;
    let etc = inside.create_dir_all("/etc", 0o755, owner).map_err(wrong("/etc"))?;
    let hostname = format!("{}\n", granted.hostname);
    etc.write("hostname", 0o644, owner, hostname.as_bytes()).map_err(wrong("/etc/hostname"))?;
    write_authorized_keys(inside, granted)?;
    let key = HostKey::generate()
        .map_err(|message| Failure::install_failed(format!("no host key: {message}")))?;
    install_host_key(inside, owner, &key).map_err(wrong("/etc/ssh"))?;
    let stamp = format!("{}\n", granted.stamp.trim_end_matches('\n'));
    let farrier =
        inside.create_dir_all("/etc/farrier", 0o755, owner).map_err(wrong("/etc/farrier"))?;
    farrier.write("image", 0o644, owner, stamp.as_bytes()).map_err(wrong("/etc/farrier/image"))?;
    if inside.has_dir(CLOUD_FOLDER) {
        let folder = format!("{CLOUD_FOLDER}/cloud.cfg.d");
        let folder = inside.create_dir_all(&folder, 0o755, owner).map_err(wrong(&folder))?;
        let text = cloud_init(&granted.user);
        folder
            .write("99-farrier.cfg", 0o644, owner, text.as_bytes())
            .map_err(wrong("99-farrier.cfg"))?;
    }
    Ok(key.public)
}

/// Writes the authorized keys of the login user.
fn write_authorized_keys(inside: &ConfinedRoot, granted: &Assignment) -> Result<(), Failure> {
    let user = &granted.user;
    let wrong = |what: &str, error: io::Error| {
        Failure::install_failed(format!("{what} of the new system: {error}"))
    };
    let passwd = inside
        .read("/etc/passwd", MAX_PASSWD_BYTES)
        .map_err(|error| wrong("/etc/passwd", error))?;
    let accounts = accounts::parse(&String::from_utf8_lossy(&passwd));
    let Some(account) = accounts.iter().find(|account| account.name == *user) else {
        let people = accounts::list_login_names(&accounts);
        return Err(Failure::install_failed(format!(
            "the image has no user {user:?}; it has: {people}"
        )));
    };
    if granted.authorized_keys.is_empty() {
        return Ok(());
    }
    if let Some(elsewhere) = find_covering_mount(inside, &account.home) {
        let home = &account.home;
        return Err(Failure::install_failed(format!(
            "the home {home} of {user} lies on a file system of its own ({elsewhere} in /etc/fstab), which is not supported; \
             use another user or image"
        )));
    }
    let keys: String =
        granted.authorized_keys.iter().map(|key| format!("{}\n", key.trim())).collect();
    write_keys_file(inside, account, &keys).map_err(|error| {
        wrong(&format!("{}/.ssh/authorized_keys", account.home.trim_end_matches('/')), error)
    })
}

fn write_keys_file(
    inside: &ConfinedRoot,
    account: &accounts::Account,
    keys: &str,
) -> io::Result<()> {
    let home: ConfinedDir = inside.create_dir_all(&account.home, 0o700, account.owner)?;
    let ssh = home.ensure_dir(".ssh", 0o700, account.owner)?;
    ssh.write("authorized_keys", 0o600, account.owner, keys.as_bytes())
}

/// The mount point in `/etc/fstab`, other than the root, that will cover a path once the system
/// runs.
fn find_covering_mount(inside: &ConfinedRoot, path: &str) -> Option<String> {
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

/// Replaces all host keys of the image: they are known to every owner of the image.
fn install_host_key(inside: &ConfinedRoot, owner: FileOwner, key: &HostKey) -> io::Result<()> {
    let ssh = inside.create_dir_all("/etc/ssh", 0o755, owner)?;
    for name in ssh
        .list_names()?
        .iter()
        .filter(|name| name.starts_with("ssh_host_") && name.contains("_key"))
    {
        ssh.remove(name)?;
    }
    ssh.write("ssh_host_ed25519_key", 0o600, owner, key.private.as_bytes())?;
    let public = format!("{}\n", key.public);
    ssh.write("ssh_host_ed25519_key.pub", 0o644, owner, public.as_bytes())
}

/// The configuration that makes cloud-init preserve these files and not wait for a data source.
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

    /// A small system in a directory, with the test's user as the owner of all accounts.
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

    fn configured(root: &Path, user: &str) -> Result<String, Failure> {
        configure_system(&ConfinedRoot::open(root).unwrap(), &granted(user))
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn system_is_configured_for_the_machine() {
        let folder = system();
        let root = folder.path();
        let public = configured(root, "root").unwrap();
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
        let names =
            ConfinedRoot::open(root).unwrap().open_dir("/etc/ssh").unwrap().list_names().unwrap();
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
    fn missing_homes_are_created_inside_only() {
        let folder = system();
        let root = folder.path();
        configured(root, "ann").unwrap();
        assert_eq!(mode(&root.join("srv/ann/.ssh/authorized_keys")), 0o600);
        configured(root, "eve").unwrap();
        assert!(root.join("farrier-agent-test-nowhere/.ssh/authorized_keys").exists());
        assert!(!Path::new("/farrier-agent-test-nowhere").exists());
    }

    #[test]
    fn cloud_init_is_configured_only_where_present() {
        let folder = system();
        fs::remove_dir(folder.path().join("etc/cloud")).unwrap();
        configured(folder.path(), "root").unwrap();
        assert!(!folder.path().join("etc/cloud").exists());
    }

    #[test]
    fn configuration_errors_are_named() {
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
            let failure = configured(folder.path(), user).unwrap_err();
            assert!(failure.message.contains(words), "{}", failure.message);
        }
    }

    #[test]
    fn only_mounts_over_the_home_matter() {
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
            let inside = ConfinedRoot::open(folder.path()).unwrap();
            assert_eq!(find_covering_mount(&inside, home).is_some(), over, "{fstab} {home}");
        }
    }
}
