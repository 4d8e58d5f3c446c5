//! Tests of the module `platform` alone.

use agent::platform::*;
use std::io::{self, Read};

#[test]
fn errors_contain_stderr() {
    let message = RealPlatform.run(Tool::Tar, &["-xf", "/nowhere.tar"], "").unwrap_err();
    assert!(
        message.starts_with("tar ended with exit status") && message.contains("nowhere"),
        "{message}"
    );
}

#[test]
fn source_errors_differ_from_tool_errors() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("cut"))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let into = ["-x", "-f", "-", "-C", folder.path().to_str().unwrap()];
    assert!(matches!(
        RealPlatform.run_with_source(Tool::Tar, &into, &mut Broken),
        Err(FeedError::Source(_))
    ));
    let garbage = vec![b'x'; 1_000_000];
    assert!(matches!(
        RealPlatform.run_with_source(Tool::Tar, &into, &mut garbage.as_slice()),
        Err(FeedError::Tool(_))
    ));
}
