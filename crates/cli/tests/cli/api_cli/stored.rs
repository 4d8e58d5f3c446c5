//! `farrier import`: all machines of a file, or none. `farrier db`: the rows of the database.

use super::Terminal;
use std::path::Path;

/// A refused machine refuses the file, and a number of machines changes no known one.
pub fn check_imports(person: &Terminal, dir: &Path) {
    let file = dir.join("wrong.csv");
    let rows = "machine_id,serial,provider\ncsv-1,other,sim\nnew-1,,sim\nnew-2,,none\n";
    std::fs::write(&file, rows).unwrap();
    let message = person.run(&["import", file.to_str().unwrap()], 2);
    assert!(message.contains("line 4 (new-2): machine.spec.provider \"none\""), "{message}");
    assert!(message.contains("1 of 3 machines are refused; nothing was registered"), "{message}");
    person.line("get new-1", 2);
    assert_eq!(person.json("get csv-1")["spec"]["serial"], "");

    person.line("machine update machine-2 --label rack=mine --serial mine", 0);
    let before = person.json("get machine-2");
    let message = person.line("import 4", 0);
    assert_eq!(
        message,
        "machine-4 registered\n1 machine registered, 3 unchanged; see them with `farrier list`\n"
    );
    let after = person.json("get machine-2");
    assert_eq!((&after["spec"], &after["labels"]), (&before["spec"], &before["labels"]));
    person.line("machine delete machine-4", 0);
}

pub fn check_database(person: &Terminal) {
    assert!(person.line("db check", 0).contains("all can be read"));
    for action in ["set-aside", "put-back"] {
        person.line(&format!("db {action} machine machine-1 --reason test"), 2);
    }
}
