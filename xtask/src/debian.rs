//! Downloads and unpacks Debian packages without installing them: the content of a ramdisk or an
//! image must not depend on the packages of the build host. `apt-get` gets its own configuration,
//! lists and status, so it needs no privileges and changes nothing on the system. The archives stay
//! in a cache.

use crate::shell::{self, Failure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The release is fixed, so that the result does not depend on the build host.
const RELEASE: &str = "bookworm";
const MIRROR: &str = "http://deb.debian.org";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Older lists are fetched again, because the archive removes the packages that they name.
const LISTS_AGE: Duration = Duration::from_secs(24 * 60 * 60);
const NEXT: &str = "check that this computer has apt-get, dpkg and Debian's keyring \
                    (debian-archive-keyring), and that it reaches Debian's archive";

/// A Debian kernel: small for virtual machines, or with the drivers of physical ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Cloud,
    Generic,
}

impl Kernel {
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Cloud, Self::Generic].into_iter().find(|kernel| kernel.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Generic => "generic",
        }
    }

    /// The metapackage that always depends on the newest kernel.
    fn package(self) -> &'static str {
        match self {
            Self::Cloud => "linux-image-cloud-amd64",
            Self::Generic => "linux-image-amd64",
        }
    }
}

/// The Debian archive, with private package lists.
pub struct DebianArchive {
    home: PathBuf,
}

impl DebianArchive {
    pub fn open(home: &Path) -> Result<Self, Failure> {
        let debian = Self { home: home.to_owned() };
        debian.configure().map_err(|error| io_failure(home, &error))?;
        if !is_fresh(&debian.mark()) {
            println!("fetching Debian's package lists ({RELEASE})");
            let updated = shell::run(debian.apt("apt-get").args(["-qq", "update"]), NEXT);
            match updated {
                Ok(()) => {
                    fs::write(debian.mark(), "")
                        .map_err(|error| io_failure(&debian.mark(), &error))?;
                }
                Err(failure) if !debian.mark().exists() => return Err(failure),
                Err(failure) => println!("the lists stay as they are: {failure}"),
            }
        }
        Ok(debian)
    }

    /// The package with the newest kernel of this flavour.
    pub fn kernel(&self, kernel: Kernel) -> Result<String, Failure> {
        let mut depends = self.apt("apt-cache");
        let reported = shell::read_output(depends.args(["depends", kernel.package()]), NEXT)?;
        find_dependency(&reported, "linux-image-")
            .ok_or_else(|| Failure::new(format!("{} depends on no kernel", kernel.package()), NEXT))
    }

    /// A directory with these packages unpacked over each other. It is rebuilt when one has a newer
    /// version.
    pub fn unpack(&self, name: &str, packages: &[&str]) -> Result<PathBuf, Failure> {
        let archives = self.fetch(packages)?;
        let root = self.home.join(name);
        let list = self.home.join(format!("{name}.list"));
        let desired = archives.iter().filter_map(|path| path.file_name()?.to_str());
        let desired = desired.collect::<Vec<_>>().join("\n");
        if root.is_dir() && fs::read_to_string(&list).is_ok_and(|have| have == desired) {
            return Ok(root);
        }
        let _ = fs::remove_file(&list);
        let _ = fs::remove_dir_all(&root);
        for archive in &archives {
            shell::run(Command::new("dpkg").arg("-x").arg(archive).arg(&root), NEXT)?;
        }
        fs::write(&list, desired).map_err(|error| io_failure(&list, &error))?;
        Ok(root)
    }

    fn fetch(&self, packages: &[&str]) -> Result<Vec<PathBuf>, Failure> {
        let folder = self.home.join("archives");
        let mut download = self.apt("apt-get");
        download.current_dir(&folder).args(["-qq", "download"]).args(packages);
        shell::run(&mut download, NEXT)?;
        let mut names = self.apt("apt-get");
        names.args(["-qq", "--print-uris", "download"]).args(packages);
        // apt-get does not print archives that already exist, so it runs in an empty directory.
        let reported = shell::read_output(names.current_dir(self.home.join("empty")), NEXT)?;
        let files: Vec<PathBuf> =
            reported.lines().filter_map(archive_file_name).map(|f| folder.join(f)).collect();
        match files.iter().find(|file| !file.is_file()) {
            None if files.len() == packages.len() => Ok(files),
            None => Err(Failure::new(
                format!("apt-get named {} of {} packages", files.len(), packages.len()),
                NEXT,
            )),
            Some(absent) => {
                Err(Failure::new(format!("{} was not fetched", absent.display()), NEXT))
            }
        }
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.home.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    fn mark(&self) -> PathBuf {
        self.home.join("updated")
    }

    fn configure(&self) -> std::io::Result<()> {
        for folder in ["lists/partial", "archives", "cache/archives/partial", "empty"] {
            fs::create_dir_all(self.home.join(folder))?;
        }
        fs::write(self.home.join("status"), "")?;
        fs::write(self.home.join("sources.list"), sources())?;
        fs::write(self.home.join("apt.conf"), configuration(&self.home))
    }
}

fn sources() -> String {
    let line = |archive: &str, suite: &str| {
        format!("deb [arch=amd64 signed-by={KEYRING}] {MIRROR}/{archive} {suite} main\n")
    };
    [
        line("debian", RELEASE),
        line("debian", &format!("{RELEASE}-updates")),
        line("debian-security", &format!("{RELEASE}-security")),
    ]
    .concat()
}

fn configuration(home: &Path) -> String {
    let home = home.display();
    format!(
        "Dir::Etc::SourceList \"{home}/sources.list\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::Etc::Preferences \"/dev/null\";\nDir::Etc::PreferencesParts \"/dev/null\";\n\
         Dir::State::Lists \"{home}/lists\";\nDir::State::Status \"{home}/status\";\n\
         Dir::Cache \"{home}/cache\";\nAPT::Architecture \"amd64\";\nAPT::Sandbox::User \"root\";\n\
         #clear APT::Update::Post-Invoke;\nAcquire::Retries \"3\";\n"
    )
}

fn is_fresh(mark: &Path) -> bool {
    let changed = fs::metadata(mark).and_then(|metadata| metadata.modified());
    changed.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < LISTS_AGE))
}

/// The first dependency in the output of `apt-cache depends` whose name has this prefix.
fn find_dependency(reported: &str, beginning: &str) -> Option<String> {
    let names = reported.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::trim).find(|name| name.starts_with(beginning)).map(str::to_owned)
}

/// The second word of `'address' file size hash`.
fn archive_file_name(line: &str) -> Option<&str> {
    line.starts_with('\'').then(|| line.split_whitespace().nth(1))?
}

fn io_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()), "make room in the target folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_name() {
        assert_eq!(Kernel::parse("cloud"), Some(Kernel::Cloud));
        assert_eq!(Kernel::parse("generic"), Some(Kernel::Generic));
        assert_eq!(Kernel::parse("tiny"), None);
    }

    #[test]
    fn the_newest_kernel_is_what_the_package_depends_on() {
        let reported = "linux-image-cloud-amd64\n  Depends: other\n  Depends: linux-image-6.1.0-9-cloud-amd64\n";
        let newest = find_dependency(reported, "linux-image-");
        assert_eq!(newest.as_deref(), Some("linux-image-6.1.0-9-cloud-amd64"));
        assert_eq!(find_dependency("linux-image-amd64\n", "linux-image-"), None);
    }

    #[test]
    fn a_file_is_the_second_word_of_a_line_with_an_address() {
        let line = "'http://example.org/a.deb' busybox_1%3a1.35_amd64.deb 900 SHA256:00";
        assert_eq!(archive_file_name(line), Some("busybox_1%3a1.35_amd64.deb"));
        assert_eq!(archive_file_name("W: a word of warning"), None);
    }

    #[test]
    fn every_source_is_signed() {
        assert!(sources().lines().all(|line| line.contains("signed-by=")));
        assert_eq!(sources().lines().count(), 3);
    }
}
