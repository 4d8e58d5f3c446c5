//! `cargo xtask conformance`: the Redfish client reads recordings of real BMCs. The program that does it is an example of
//! the providers' crate, because this one has no dependencies; here it is only built and started.

use crate::shell::{self, Failure};
use std::path::Path;

pub fn run(trees: &str) -> Result<(), Failure> {
    // Cargo starts it elsewhere than the person who named the folder.
    let folder = std::env::current_dir().unwrap_or_default().join(trees);
    if !Path::new(&folder).is_dir() {
        let said = format!("{} is not a folder", folder.display());
        return Err(Failure::new(said, "name the folder that holds one folder per recorded BMC"));
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
