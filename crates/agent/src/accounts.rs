//! The accounts of a system, from its `/etc/passwd`.

use crate::confined_fs::FileOwner;

const ROOT: u32 = 0;
/// The first user id of human users, by convention of all distributions.
const FIRST_PERSON: u32 = 1000;
const NOBODY: u32 = 65_534;
const MAX_NAMED: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub owner: FileOwner,
    pub home: String,
}

/// Parses the lines that are accounts and skips the others, as the system itself does.
pub fn parse(passwd: &str) -> Vec<Account> {
    passwd.lines().filter_map(account).collect()
}

fn account(line: &str) -> Option<Account> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, user, group, _, home, _] = fields.as_slice() else { return None };
    let owner = FileOwner { user: user.parse().ok()?, group: group.parse().ok()? };
    Some(Account { name: (*name).to_owned(), owner, home: (*home).to_owned() })
}

/// The names of accounts that an operator may have meant: root and human users.
pub fn list_login_names(accounts: &[Account]) -> String {
    let is_person = |account: &&Account| {
        let user = account.owner.user;
        user == ROOT || (user >= FIRST_PERSON && user != NOBODY)
    };
    let mut names: Vec<&str> =
        accounts.iter().filter(is_person).map(|account| account.name.as_str()).collect();
    if names.len() > MAX_NAMED {
        names.truncate(MAX_NAMED);
        names.push("…");
    }
    if names.is_empty() { "nobody".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
