//! The corpora of the fuzz targets: what was found once is not found again.

#[path = "../../../../fuzz/src/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_input_of_the_corpora_is_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let folders: BTreeSet<String> = std::fs::read_dir(&corpus)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let names: BTreeSet<String> =
        targets::TARGETS.iter().map(|(name, _)| (*name).to_string()).collect();
    assert_eq!(folders, names, "each target has a folder, and each folder a target");
    for (name, read) in targets::TARGETS {
        let mut inputs = 0;
        for input in std::fs::read_dir(corpus.join(name)).unwrap() {
            let path = input.unwrap().path();
            println!("{}", path.display());
            read(&std::fs::read(path).unwrap());
            inputs += 1;
        }
        assert!(inputs >= 3, "{name} has {inputs} inputs");
    }
}
