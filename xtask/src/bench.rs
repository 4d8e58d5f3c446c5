//! `cargo xtask bench`: measures the limits of the disk and the databases, then Farrier, in one run
//! on one disk. A missed target is only shown; a wrong result is a failure.

use crate::shell::{self, Failure};
use crate::test::{POSTGRES, database, target};
use std::fs;

pub fn run(arguments: &[&str]) -> Result<(), Failure> {
    let (url, cluster) = match needs_postgres(arguments) {
        true => database().map(|(url, cluster)| (Some(url), cluster))?,
        false => (None, None),
    };
    let measured = measure(arguments, url.as_deref());
    drop(cluster);
    measured
}

fn measure(arguments: &[&str], url: Option<&str>) -> Result<(), Failure> {
    let limits = target().join("bench-limits.json");
    let json = target().join("bench.json");
    let mut raw =
        shell::cargo(["bench", "--quiet", "--locked", "-p", "farrier-store", "--bench", "limits"]);
    let mut speed =
        shell::cargo(["bench", "--quiet", "--locked", "-p", "farrier", "--bench", "speed", "--"]);
    for command in [&mut raw, &mut speed] {
        match url {
            Some(url) => command.env(POSTGRES, url),
            None => command.env_remove(POSTGRES),
        };
    }
    let mut fill =
        shell::cargo(["build", "--quiet", "--locked", "--release", "-p", "farrier-store"]);
    shell::run(fill.args(["--example", "fill"]), "see the error above")?;
    println!("building, then measuring what the disk allows; the temporary folder is on it");
    let found = shell::read_output(&mut raw, "see the error above")?;
    fs::write(&limits, found).map_err(|error| {
        Failure::new(format!("{}: {error}", limits.display()), "make room in the target folder")
    })?;
    speed.arg("--fill").arg(target().join("release/examples/fill"));
    speed.arg("--limits").arg(limits).arg("--json").arg(json).args(arguments);
    shell::run(&mut speed, "the lines above say what was wrong, or which arguments there are")
}

/// True if a PostgreSQL server is needed.
fn needs_postgres(arguments: &[&str]) -> bool {
    let narrowed = arguments.windows(2).any(|pair| pair == ["--store", "sqlite"]);
    !narrowed && !arguments.contains(&"--store=sqlite")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_started_only_where_it_is_measured() {
        assert!(needs_postgres(&[]));
        assert!(needs_postgres(&["--store", "postgres"]));
        assert!(needs_postgres(&["--only", "sqlite"]));
        assert!(!needs_postgres(&["--clients", "32", "--store", "sqlite"]));
        assert!(!needs_postgres(&["--store=sqlite"]));
    }
}
