//! `cargo xtask fuzz`: libFuzzer on stable, as `cargo fuzz run -s none` does it. The targets are in
//! the folder `fuzz`, which is no member of the workspace. Inputs that are new go to the target
//! directory, not into the repository; an input that fails is named at the end.

use crate::shell::{self, Failure};
use crate::test::{stage, target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "fuzz";
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Coverage for libFuzzer, without a sanitizer: those need a nightly compiler.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Ccodegen-units=1 --cfg fuzzing";
/// The longest input, in bytes.
const MAX_INPUT: usize = 1 << 16;
/// An input may not need more memory, in megabytes, or more seconds.
const MAX_MEMORY: usize = 1024;
const MAX_SECONDS: usize = 10;
const NEXT: &str = "`cargo xtask fuzz --minutes 5 filter qcow2`; both may be left out";

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub struct FuzzOptions {
    /// For each target.
    minutes: f64,
    /// Empty: all.
    targets: Vec<String>,
}

impl Default for FuzzOptions {
    fn default() -> Self {
        Self { minutes: 1.0, targets: Vec::new() }
    }
}

impl FuzzOptions {
    pub fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--minutes" => {
                    let minutes = words.next().and_then(|value| value.parse::<f64>().ok());
                    let minutes = minutes.filter(|minutes| minutes.is_finite() && *minutes > 0.0);
                    options.minutes =
                        minutes.ok_or_else(|| Failure::new("--minutes needs a number", NEXT))?;
                }
                option if option.starts_with('-') => {
                    return Err(Failure::new(format!("{option} is no option"), NEXT));
                }
                target => options.targets.push(target.to_string()),
            }
        }
        Ok(options)
    }
}

pub fn run(options: &FuzzOptions) -> Result<(), Failure> {
    let all = targets(Path::new(FOLDER))?;
    let chosen = match options.targets.is_empty() {
        true => all.clone(),
        false => options.targets.clone(),
    };
    if let Some(unknown) = chosen.iter().find(|name| !all.contains(name)) {
        let known = format!("use one of {}", all.join(", "));
        return Err(Failure::new(format!("there is no target {unknown}"), &known));
    }
    let program = stage("build of the fuzz targets", build)?;
    let mut failures = Vec::new();
    for name in &chosen {
        let ran = stage(&format!("fuzz {name}"), || fuzz(&program, name, options.minutes));
        failures.extend(ran.err().map(|failure| format!("{name}: {failure}")));
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(
            failures.join("\n"),
            "the lines above name the input; add it to fuzz/corpus with its fix",
        )),
    }
}

/// Every folder of the corpus is a target.
fn targets(folder: &Path) -> Result<Vec<String>, Failure> {
    let corpus = folder.join("corpus");
    let read = fs::read_dir(&corpus).map_err(|error| {
        Failure::new(
            format!("{}: {error}", corpus.display()),
            "run it at the top of the repository",
        )
    })?;
    let mut names: Vec<String> =
        read.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn build() -> Result<PathBuf, Failure> {
    let output = target().join("fuzz");
    let manifest = format!("{FOLDER}/Cargo.toml");
    let mut cargo = shell::cargo(["build", "--release", "--locked", "--target", TRIPLE]);
    cargo.args(["--manifest-path", &manifest, "--target-dir"]).arg(&output);
    // A target is named, so the flags are not those of build scripts.
    cargo.env("RUSTFLAGS", RUSTFLAGS);
    shell::run(&mut cargo, "see the error above; libFuzzer needs a C++ compiler")?;
    Ok(output.join(TRIPLE).join("release/fuzz"))
}

fn fuzz(program: &Path, name: &str, minutes: f64) -> Result<(), Failure> {
    let found = target().join("fuzz-corpus").join(name);
    let findings = target().join("fuzz-findings").join(format!("{name}-"));
    for folder in [Some(found.as_path()), findings.parent()].into_iter().flatten() {
        fs::create_dir_all(folder).map_err(|error| {
            Failure::new(format!("{}: {error}", folder.display()), "make room for it")
        })?;
    }
    let seconds = (minutes * 60.0).ceil();
    let mut command = Command::new(program);
    command.env("FARRIER_FUZZ_TARGET", name).arg(&found).arg(format!("{FOLDER}/corpus/{name}"));
    command.args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={MAX_INPUT}"),
        format!("-rss_limit_mb={MAX_MEMORY}"),
        format!("-timeout={MAX_SECONDS}"),
        format!("-artifact_prefix={}", findings.display()),
        "-print_final_stats=1".into(),
        "-verbosity=0".into(),
    ]);
    shell::run(&mut command, "see the error above")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_targets_are_options() {
        assert_eq!(FuzzOptions::parse(&[]).unwrap(), FuzzOptions::default());
        let options = FuzzOptions::parse(&["filter", "--minutes", "0.5", "tar"]).unwrap();
        let targets = vec!["filter".to_string(), "tar".to_string()];
        assert_eq!(options, FuzzOptions { minutes: 0.5, targets });
        for words in [&["--minutes"][..], &["--minutes", "-1"], &["--hours", "1"]] {
            assert!(FuzzOptions::parse(words).is_err(), "{words:?}");
        }
    }
}
