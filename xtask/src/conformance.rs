//! `cargo xtask conformance`: the Redfish client reads recordings of real BMCs. The program is an
//! example of the providers crate, because this crate has no dependencies; this module only builds
//! and starts it.

use crate::shell::{self, Failure};
use std::path::Path;

pub fn run(trees: &str) -> Result<(), Failure> {
    // Cargo changes the working directory, so a relative path is resolved here.
    let folder = std::env::current_dir().unwrap_or_default().join(trees);
    if !Path::new(&folder).is_dir() {
        let message = format!("{} is not a folder", folder.display());
        return Err(Failure::new(
            message,
            "name the folder that holds one folder per recorded BMC",
        ));
    }
    let mut example = shell::cargo(["run", "--quiet", "--locked", "-p", "farrier-providers"]);
    example.args(["--example", "conformance", "--"]).arg(folder);
    shell::run(&mut example, "the lines above say which resource of which recording was not read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let failure = run("no-such-folder").unwrap_err().to_string();
        assert!(failure.contains("no-such-folder is not a folder"), "{failure}");
    }
}
