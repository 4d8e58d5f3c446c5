//! Tests of the module `accounts` alone.

use agent::accounts::*;
use agent::confined_fs::FileOwner;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/usr/sbin:/bin/false\n# no\nbad:x:y:1::/:/\n\
    nobody:x:65534:65534::/nonexistent:/bin/false\ndebian:x:1000:1001:,,,:/srv/debian:/bin/sh\n+nis\n";

#[test]
fn other_lines_of_passwd_are_skipped() {
    let accounts = parse(PASSWD);
    let names: Vec<&str> = accounts.iter().map(|account| account.name.as_str()).collect();
    assert_eq!(names, ["root", "daemon", "nobody", "debian"]);
    let debian = Account {
        name: "debian".into(),
        owner: FileOwner { user: 1000, group: 1001 },
        home: "/srv/debian".into(),
    };
    assert_eq!(accounts[3], debian);
}

#[test]
fn login_names_are_limited() {
    assert_eq!(list_login_names(&parse(PASSWD)), "root, debian");
    assert_eq!(list_login_names(&[]), "nobody");
    let many: String = (0..40).map(|n| format!("p{n}:x:{}:1::/:/\n", 1000 + n)).collect();
    assert!(list_login_names(&parse(&many)).ends_with("p15, …"));
}
