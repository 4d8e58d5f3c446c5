//! Runs other programs. Every failure says what failed and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The reason why a task stopped, and what to do next.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    remedy: String,
}

impl Failure {
    pub fn new(text: impl Into<String>, next: impl Into<String>) -> Self {
        Self { message: text.into(), remedy: next.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  what to do: {}", self.message, self.remedy)
    }
}

/// The root of the repository, from cargo's environment at run time, else from the build.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

/// A cargo command in the repository root, with the cargo that started this program. On CI
/// everything is built once, so incremental compilation is off.
pub fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    if std::env::var_os("CI").is_some() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Runs a program whose output is shown.
pub fn run(command: &mut Command, next: &str) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).status().map_err(|error| {
        Failure::new(format!("`{}` did not start: {error}", format_command(command)), next)
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("`{}` failed ({status})", format_command(command)), next))
}

/// Runs a program and returns its stdout; its stderr is shown.
pub fn read_output(command: &mut Command, next: &str) -> Result<String, Failure> {
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(|error| {
            Failure::new(format!("`{}` did not start: {error}", format_command(command)), next)
        })?;
    if !output.status.success() {
        return Err(Failure::new(
            format!("`{}` failed ({})", format_command(command), output.status),
            next,
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// True if a program ran and succeeded. Its output is discarded.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The path of a program in PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// A number that `id` prints: `id(&["-u"])` is our user, `id(&["-g", "postgres"])` the group of
/// another user.
pub fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

pub fn is_root() -> bool {
    id(&["-u"]) == Some(0)
}

/// A shell script with the privileges to install packages; none if that needs a password.
pub fn administrator_command(script: &str) -> Option<Command> {
    find("apt-get")?;
    let mut command = if is_root() {
        Command::new("sh")
    } else if succeeds(Command::new("sudo").args(["-n", "true"])) {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "sh"]);
        sudo
    } else {
        return None;
    };
    command.args(["-c", script]);
    Some(command)
}

/// The command as typed in a shell.
fn format_command(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words: Vec<_> = std::iter::once(name)
        .chain(command.get_args())
        .map(|label| label.to_string_lossy())
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_the_remedy() {
        let failure = run(Command::new("sh").args(["-c", "exit 3"]), "look above").unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("sh -c exit 3"), "{text}");
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.contains("what to do: look above"), "{text}");
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure_too() {
        let failure =
            read_output(&mut Command::new("farrier-no-such-program"), "install it").unwrap_err();
        assert!(failure.to_string().contains("did not start"), "{failure}");
        assert!(find("farrier-no-such-program").is_none());
    }

    #[test]
    fn an_answer_is_the_standard_output() {
        assert_eq!(read_output(Command::new("echo").arg("yes"), "").unwrap(), "yes\n");
        assert!(find("sh").is_some());
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").is_file());
    }
}
