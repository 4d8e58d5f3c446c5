//! Notifiers, as they are typed.

use super::Terminal;
use std::path::Path;

pub fn typed(person: &Terminal, dir: &Path) {
    let key = dir.join("hook.key");
    std::fs::write(&key, "key\n").unwrap();
    let key = key.to_str().unwrap();
    let bound = "--for 127.0.0.1 --allow-plain-http";
    person.line(&format!("credential create hook --user u --password-file {key} {bound}"), 0);
    let create = "notify create ops --url http://127.0.0.1:1/in --credential hook";
    let none = person.line(create, 2);
    assert!(none.contains("notifier.kinds is required"), "{none}");
    person.line(&format!("{create} --kind needs-person --max-attempts 1"), 0);
    person.line(&format!("{create} --kind needs-person --max-attempts 1"), 0);
    let other = person.line(&format!("{create} --kind operation-failed"), 2);
    assert!(other.contains("exists with other settings"), "{other}");
    assert!(other.contains("farrier notify update ops"), "{other}");
    let slack = "notify create chat --format slack --credential hook --kind needs-person";
    let wrong = person.line(&format!("{slack} --url https://hooks.slack.com/x"), 2);
    assert!(wrong.contains("{secret}"), "{wrong}");
    let filter = ["notify", "update", "ops", "--filter", "severity=loud"];
    assert!(person.run(&filter, 2).contains("critical"), "a filter is checked");

    assert!(person.line("notify list", 0).contains("ops"));
    let found = person.json("notify get ops");
    assert_eq!(found["kinds"][0], "needs-person");
    assert_eq!(found["format"], "cloudevents");
    assert_eq!(found["source"], "/farrier");
    person.line("notify get nobody", 2);
    person.line("notify update ops --source /site-a", 0);
    assert!(person.line("notify update ops --source /site-a", 0).contains("nothing was changed"));
    let stale = person.line("notify update ops --source /b --expected-version 1", 2);
    assert!(stale.contains("farrier notify get ops"), "{stale}");
    assert!(person.line("notify test ops", 1).contains("could not be connected to"));
    assert!(person.line("notify pause ops", 0).contains("paused"));
    assert!(person.line("notify get ops", 0).contains("paused"));
    assert!(person.line("notify resume ops", 0).contains("resumed"));
    assert_eq!(person.json("notify dead-letters ops").as_array().map(Vec::len), Some(0));
    assert!(person.line("notify replay ops --all", 0).contains("0 dead letters"));
    assert!(person.line("notify replay ops 17", 2).contains("no dead letter"));
    assert!(person.line("notify discard ops --all", 0).contains("0 dead letters"));
    person.line("notify delete ops --expected-version 1", 2);
    assert!(person.line("notify delete ops", 0).contains("deleted"));
}
