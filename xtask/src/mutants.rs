//! `cargo xtask mutants`: does the crash matrix detect a broken engine? Each mutant breaks one rule
//! of the kernel, and the matrix must fail with the expected message.
//!
//! The mutants are applied to a copy of the source tree, so that the product has no switch that
//! could break it. In the copy, every mutant is inactive next to the correct code until an
//! environment variable names it, so one build serves all mutants. With all mutants inactive the
//! same cases must pass, which proves that the copy is otherwise correct.

mod table;

use crate::shell::{self, Failure};
use crate::test::{executable, target};
use crate::tidy;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use table::MUTANTS;

/// The environment variable that activates a mutant, only in the copy.
const MUTANT_VARIABLE: &str = "FARRIER_MUTANT";
/// A broken engine may wait forever. A timeout does not count as detection.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The crates that are built without optimization: their tests run for a few seconds, which is less
/// than the optimizer would take.
const UNOPTIMIZED: [&str; 4] =
    ["farrier-model", "farrier-store", "farrier-providers", "farrier-engine"];

/// One way to break the engine, and how the crash matrix must detect it.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Must be in the file exactly once.
    original: &'static str,
    /// Replaces `sound`. `AWAKE` in it is true if this mutant is active.
    broken: &'static str,
    /// The test that must fail, and the one scenario that it runs.
    test: &'static str,
    scenario: &'static str,
    /// A text that the failure must contain.
    expected_message: &'static str,
}

pub fn run() -> Result<(), Failure> {
    let tree = target().join("mutants").join("tree");
    let sources = set_copy_version(read(&shell::root()))?;
    let mutated = MUTANTS.iter().try_fold(sources.clone(), |files, mutant| mutant.apply(files))?;
    write(&tree, &mutated)?;
    let fetched = "see that the network, or the folder of fetched crates, is there";
    shell::run(&mut shell::cargo(["fetch", "--locked", "--quiet"]), fetched)?;
    let Some(tests) = build(&tree)? else {
        return Err(find_uncompilable_mutant(&tree, &sources)?);
    };
    let cases: BTreeSet<_> = MUTANTS.iter().map(|mutant| (mutant.test, mutant.scenario)).collect();
    for (test, scenario) in cases {
        let reported = run_case(&tests, &tree, test, scenario, None)?;
        if !reported.passed {
            let message =
                format!("with no mutant awake, {test} fails at {scenario:?}:\n{}", reported.output);
            return Err(Failure::new(message, "mend the engine, or the sleep of the last mutant"));
        }
    }
    for mutant in MUTANTS {
        let started = Instant::now();
        let reported = run_case(&tests, &tree, mutant.test, mutant.scenario, Some(mutant.name))?;
        mutant.check_detected(&reported)?;
        println!("caught in {:4.1} s: {}", started.elapsed().as_secs_f64(), mutant.name);
    }
    Ok(())
}

impl Mutant {
    fn apply(&self, mut files: Files) -> Result<Files, Failure> {
        let next = "bring the mutant in xtask/src/mutants/table.rs up to date with what it breaks";
        let text = files.get_mut(Path::new(self.file)).ok_or_else(|| {
            Failure::new(format!("mutant {:?}: there is no {}", self.name, self.file), next)
        })?;
        let found = text.matches(self.original).count();
        if found != 1 {
            let message = format!(
                "mutant {:?} does not apply: its text stands {found} times in {}, not once",
                self.name, self.file
            );
            return Err(Failure::new(message, next));
        }
        let awake = format!(
            "std::env::var_os({MUTANT_VARIABLE:?}).is_some_and(|name| name == {:?})",
            self.name
        );
        *text = text.replacen(self.original, &self.broken.replace("AWAKE", &awake), 1);
        Ok(files)
    }

    fn check_detected(&self, reported: &TestResult) -> Result<(), Failure> {
        let (name, test, scenario) = (self.name, self.test, self.scenario);
        if reported.passed {
            let message =
                format!("mutant {name:?} survived: {test} at {scenario:?} did not notice");
            return Err(Failure::new(message, "add a scenario or an audit rule that detects it"));
        }
        if !reported.output.contains(self.expected_message) {
            let message = format!(
                "mutant {name:?} was not caught for what it is: {test} at {scenario:?} failed without \
                 saying {:?}:\n{}",
                self.expected_message, reported.output
            );
            return Err(Failure::new(message, "find out what failed instead; see the lines above"));
        }
        Ok(())
    }
}

/// The text files of a tree, by path.
type Files = BTreeMap<PathBuf, String>;

fn read(root: &Path) -> Files {
    let paths = tidy::list(root).into_iter().map(PathBuf::from);
    // Files that are not text are not needed for the build.
    let text = |path: PathBuf| Some((path.clone(), fs::read_to_string(root.join(path)).ok()?));
    paths.filter_map(text).collect()
}

/// Gives the crates of the copy their own version. Cargo identifies workspace crates by name and
/// version, not by path: with the same version, it would mix up the copy with the original.
fn set_copy_version(mut files: Files) -> Result<Files, Failure> {
    const SECTION: &str = "[workspace.package]\nversion = \"";
    let manifest = files.entry(PathBuf::from("Cargo.toml")).or_default();
    let apart = manifest.split_once(SECTION).and_then(|(before, after)| {
        let (version, after) = after.split_once('"')?;
        Some(format!("{before}{SECTION}{version}-mutants\"{after}"))
    });
    *manifest = apart.ok_or_else(|| {
        let next = "let [workspace.package] begin with the version, or change `set_apart`";
        Failure::new("the version of the workspace is not where it was", next)
    })?;
    Ok(files)
}

/// Makes the directory contain exactly these files. Unchanged files are not written, so that cargo
/// does not rebuild them.
fn write(tree: &Path, files: &Files) -> Result<(), Failure> {
    let attempt = || -> io::Result<()> {
        fs::create_dir_all(tree)?;
        for path in tidy::walked(tree).iter().filter(|path| !files.contains_key(Path::new(path))) {
            fs::remove_file(tree.join(path))?;
        }
        for (path, text) in files {
            let path = tree.join(path);
            if fs::read_to_string(&path).is_ok_and(|there| there == *text) {
                continue;
            }
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(path, text)?;
        }
        Ok(())
    };
    attempt().map_err(|error| {
        Failure::new(format!("{}: {error}", tree.display()), "make room in the target folder")
    })
}

/// Builds the engine's tests in the copy, in the original's target directory, where the registry
/// crates are already built. None if they do not compile.
fn build(tree: &Path) -> Result<Option<PathBuf>, Failure> {
    // The whole workspace is named so that the dependencies have the same features as in the test
    // suite. Cargo writes the new version of our crates into the copy's lock file; other entries
    // stay, and nothing is downloaded.
    let mut build = shell::cargo(["test", "--workspace", "--offline", "--quiet", "--no-run"]);
    build.args(["--test", "engine", "--message-format=json-render-diagnostics"]);
    for name in UNOPTIMIZED {
        build.args(["--config", &format!("profile.dev.package.{name}.opt-level=0")]);
        build.args(["--config", &format!("profile.dev.package.{name}.debug=false")]);
    }
    build.current_dir(tree).env("CARGO_TARGET_DIR", target());
    match shell::read_output(&mut build, "") {
        Err(_) => Ok(None),
        Ok(messages) => executable(&messages, "engine").map(Some).ok_or_else(|| {
            let next = "see that crates/engine has a test target named engine";
            Failure::new("cargo named no executable for the tests of the engine", next)
        }),
    }
}

/// Finds the mutant that does not compile, by building each alone.
fn find_uncompilable_mutant(tree: &Path, sources: &Files) -> Result<Failure, Failure> {
    write(tree, sources)?;
    if build(tree)?.is_none() {
        let message = "the copy does not compile even without a mutant in it";
        return Ok(Failure::new(message, "see whether the tree does: `cargo test --no-run`"));
    }
    let next = "the compiler's words are above; change the mutant in xtask/src/mutants/table.rs";
    for mutant in MUTANTS {
        write(tree, &mutant.apply(sources.clone())?)?;
        if build(tree)?.is_none() {
            return Ok(Failure::new(format!("mutant {:?} does not compile", mutant.name), next));
        }
    }
    Ok(Failure::new("the mutants do not compile together, though each does alone", next))
}

/// The result of a test.
struct TestResult {
    passed: bool,
    output: String,
}

fn run_case(
    tests: &Path,
    tree: &Path,
    test: &str,
    scenario: &str,
    mutant: Option<&str>,
) -> Result<TestResult, Failure> {
    let name = mutant.unwrap_or("asleep");
    let words = target().join("mutants").join(format!("{name}.log"));
    let mut command = Command::new(tests);
    command.args([test, "--exact"]).env("FARRIER_MATRIX", scenario);
    command.current_dir(tree.join("crates/engine"));
    match mutant {
        Some(mutant) => command.env(MUTANT_VARIABLE, mutant),
        None => command.env_remove(MUTANT_VARIABLE),
    };
    let failed = |error: io::Error| {
        Failure::new(format!("{name}: {error}"), "see that the target folder can be written to")
    };
    let log = fs::File::create(&words).map_err(failed)?;
    command.stdin(Stdio::null()).stderr(log.try_clone().map_err(failed)?).stdout(log);
    let status = wait(command.spawn().map_err(failed)?).map_err(failed)?;
    let message = fs::read_to_string(&words).map_err(failed)?;
    match status {
        Some(_) if !message.contains("running 1 test") => {
            let message = format!("{name}: there is no test {test}");
            Err(Failure::new(
                message,
                "name one of the tests in crates/engine/tests/engine/matrix.rs",
            ))
        }
        Some(passed) => Ok(TestResult { passed, output: message }),
        None => {
            let message =
                format!("{name}: {test} at {scenario:?} did not end within {TEST_TIMEOUT:?}");
            Err(Failure::new(message, format!("read {}", words.display())))
        }
    }
}

/// True if a program succeeded; none if it was killed after the time limit.
fn wait(mut child: std::process::Child) -> io::Result<Option<bool>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if started.elapsed() > TEST_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUTANT: Mutant = Mutant {
        name: "no brakes",
        file: "car.rs",
        original: "brake()",
        broken: "if !AWAKE { brake() }",
        test: "drive",
        scenario: "downhill",
        expected_message: "into the wall",
    };

    fn apply(text: &str) -> Result<String, String> {
        let files = Files::from([(PathBuf::from("car.rs"), text.to_owned())]);
        let applied = MUTANT.apply(files).map_err(|failure| failure.to_string())?;
        Ok(applied[Path::new("car.rs")].clone())
    }

    #[test]
    fn a_mutant_is_inactive_until_it_is_named() {
        let text = apply("fn stop() { brake() }").unwrap();
        assert!(text.contains(r#"var_os("FARRIER_MUTANT")"#), "{text}");
        assert!(text.contains(r#"name == "no brakes""#), "{text}");
    }

    #[test]
    fn a_mutant_that_no_longer_applies_is_named() {
        for (text, times) in [("fn stop() {}", "0 times"), ("brake(); brake()", "2 times")] {
            let message = apply(text).unwrap_err();
            assert!(message.contains("\"no brakes\"") && message.contains(times), "{message}");
        }
        let message = MUTANT.apply(Files::new()).map(drop).unwrap_err().to_string();
        assert!(message.contains("\"no brakes\"") && message.contains("no car.rs"), "{message}");
    }

    #[test]
    fn only_the_expected_message_counts_as_detection() {
        let judged = |passed, message: &str| {
            MUTANT
                .check_detected(&TestResult { passed, output: message.into() })
                .map_err(|failure| failure.to_string())
        };
        assert!(judged(true, "").unwrap_err().contains("survived"));
        assert!(judged(false, "out of fuel").unwrap_err().contains("into the wall"));
        judged(false, "it drove into the wall").unwrap();
    }

    #[test]
    fn every_mutant_applies_and_has_a_name_of_its_own() {
        let names: BTreeSet<_> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), MUTANTS.len());
        let applied = MUTANTS.iter().try_fold(read(&shell::root()), |files, one| one.apply(files));
        assert!(applied.is_ok(), "{}", applied.map(drop).unwrap_err());
    }

    #[test]
    fn the_copy_has_its_own_version() {
        let manifest = |text: &str| Files::from([(PathBuf::from("Cargo.toml"), text.to_owned())]);
        let apart =
            set_copy_version(manifest("[workspace.package]\nversion = \"1.2.3\"\n")).unwrap();
        let text = &apart[Path::new("Cargo.toml")];
        assert_eq!(text, "[workspace.package]\nversion = \"1.2.3-mutants\"\n");
        assert!(set_copy_version(manifest("[package]\n")).is_err());
        assert!(set_copy_version(read(&shell::root())).is_ok());
    }

    #[test]
    fn unchanged_files_of_a_copy_are_not_written() {
        let folder = std::env::temp_dir().join(format!("farrier-mutants-{}", std::process::id()));
        let files = |names: &[&str]| -> Files {
            names.iter().map(|name| (PathBuf::from(name), "text".to_owned())).collect()
        };
        write(&folder, &files(&["a/b.rs", "c.rs"])).unwrap();
        let written = fs::metadata(folder.join("c.rs")).unwrap().modified().unwrap();
        write(&folder, &files(&["c.rs", "d.rs"])).unwrap();
        assert_eq!(tidy::walked(&folder), ["c.rs".to_owned(), "d.rs".to_owned()].into());
        assert_eq!(fs::metadata(folder.join("c.rs")).unwrap().modified().unwrap(), written);
        fs::remove_dir_all(folder).unwrap();
    }
}
