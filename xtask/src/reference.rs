//! `cargo xtask reference`: writes docs/reference from the sources that define each thing, so that
//! the book cannot disagree with the code. `cargo xtask tidy` compares the pages and names the
//! command when one is out of date.
//!
//! The generators read text: the protos, the configuration structs, the descriptions of metrics and
//! the table of faults are laid out by rustfmt or by convention. The command line is the exception:
//! clap knows it best, so a test of the `farrier` package writes and compares its page. In the same
//! way a test of the model writes the tables of docs/api-errors.md, and one of the providers writes
//! deploy/kubernetes-rbac.yaml.

mod api;
mod configuration;
mod faults;
mod metrics;

use crate::shell::{self, Failure};
use crate::tidy;
use std::fs;

/// Read by the tests that write docs/reference/cli.md, the tables of docs/api-errors.md, and
/// deploy/kubernetes-rbac.yaml.
const REWRITE: &str = "FARRIER_REWRITE_REFERENCE";

/// A file of the repository, by its path from the top.
pub type Text = (String, String);

/// One generated page.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub path: &'static str,
    pub text: String,
}

pub fn run() -> Result<(), Failure> {
    let root = shell::root();
    for page in pages(&tidy::read(&root)) {
        let path = root.join(page.path);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        written.and_then(|()| fs::write(&path, page.text)).map_err(|error| {
            Failure::new(format!("{}: {error}", path.display()), "make the folder writable")
        })?;
        println!("{}", page.path);
    }
    let mut test = shell::cargo(["test", "--quiet", "--locked", "-p", "farrier-model"]);
    test.args(["--test", "model", "pages::"]).env(REWRITE, "1");
    shell::run(&mut test, "the lines above say why docs/api-errors.md cannot be written")?;
    let mut test = shell::cargo(["test", "--quiet", "--locked", "-p", "farrier-providers"]);
    test.args(["--lib", "rights::"]).env(REWRITE, "1");
    shell::run(&mut test, "the lines above say why deploy/kubernetes-rbac.yaml cannot be written")?;
    let mut test = shell::cargo(["test", "--quiet", "--locked", "-p", "farrier", "--lib"]);
    test.args(["args::reference::"]).env(REWRITE, "1");
    shell::run(&mut test, "the lines above say why docs/reference/cli.md cannot be written")
}

/// Every page that is generated from text.
pub fn pages(texts: &[Text]) -> Vec<Page> {
    vec![
        Page { path: "docs/reference/api.md", text: api::page(texts) },
        Page { path: "docs/reference/configuration.md", text: configuration::page(texts) },
        Page { path: "docs/reference/faults.md", text: faults::page(texts) },
        Page { path: "docs/reference/metrics.md", text: metrics::page(texts) },
    ]
}

/// The pages that differ from the generated text.
pub fn outdated(texts: &[Text]) -> Vec<&'static str> {
    let is_current = |page: &Page| find(texts, page.path) == Some(&page.text);
    pages(texts).iter().filter(|page| !is_current(page)).map(|page| page.path).collect()
}

fn find<'a>(texts: &'a [Text], path: &str) -> Option<&'a str> {
    texts.iter().find(|(one, _)| one == path).map(|(_, text)| text.as_str())
}

/// The note at the top of every generated page.
fn header(title: &str, source: &str) -> String {
    format!(
        "# {title}\n\n<!-- Made by `cargo xtask reference` from {source}. Change that, not this page. -->\n\n"
    )
}

/// Text escaped for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_differs_is_named() {
        let all = |texts: &[Text]| outdated(texts).len();
        assert_eq!(all(&[]), 4);
        let current: Vec<Text> =
            pages(&[]).into_iter().map(|page| (page.path.to_owned(), page.text)).collect();
        assert_eq!(all(&current), 0);
    }

    #[test]
    fn a_cell_stays_in_its_column() {
        assert_eq!(cell("a|b\nc <d>"), "a\\|b c &lt;d>");
    }
}
