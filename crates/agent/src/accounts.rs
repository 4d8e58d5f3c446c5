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
