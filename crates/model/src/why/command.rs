//! The commands of an explanation: each is one command, with nothing else in its line.

use super::Explanation;

/// Stands before the comment of a command.
const COMMENT: &str = "   #";
/// Every command begins with it.
const PROGRAM: &str = "farrier ";

impl Explanation {
    /// Takes the comments of its commands away. A comment that names another command is replaced by
    /// that command; no command is offered twice.
    #[must_use]
    pub fn with_plain_commands(mut self) -> Self {
        let mut plain: Vec<String> = Vec::new();
        for command in self.next_commands.iter().flat_map(|command| split(command)) {
            if !plain.contains(&command) {
                plain.push(command);
            }
        }
        self.next_commands = plain;
        self
    }
}

/// The command, and the one that its comment names.
fn split(command: &str) -> Vec<String> {
    let Some((first, comment)) = command.split_once(COMMENT) else { return vec![command.into()] };
    let other = comment.find(PROGRAM).and_then(|at| comment.get(at..));
    [Some(first), other].into_iter().flatten().map(|one| one.trim().to_string()).collect()
}
