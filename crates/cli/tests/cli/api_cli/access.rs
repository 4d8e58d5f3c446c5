//! Tokens, roles, contexts and the sign-in, as they are typed.

use super::Terminal;
use std::path::Path;

pub fn typed(person: &Terminal, dir: &Path) {
    let me = person.line("whoami", 0);
    assert!(me.starts_with("admin at token tok-") && me.contains("credential-write"), "{me}");
    let link = person.line("console", 0);
    assert!(link.starts_with("http://127.0.0.1:") && link.contains("/sign-in?code="), "{link}");

    assert!(person.line("role list", 0).contains("rack-operator"));
    person.line("role create night --permission view --permission operate", 0);
    let wrong = person.line("role create night --permission root", 2);
    assert!(wrong.contains("use one of view, operate"), "{wrong}");
    let other = person.line("role create night --permission view", 2);
    assert!(other.contains("exists with other permissions"), "{other}");
    let built_in = person.line("role delete viewer", 2);
    assert!(built_in.contains("built in"), "{built_in}");

    let file = dir.join("night.token");
    let out = file.to_str().unwrap();
    let made = person.run(
        &[
            "token",
            "create",
            "--user",
            "eve",
            "--role",
            "night",
            "--expires-in",
            "90d",
            "--out",
            out,
        ],
        0,
    );
    let secret = std::fs::read_to_string(&file).unwrap();
    assert!(secret.starts_with("farrier_pat_") && !made.contains(secret.trim()), "{made}");
    let tokens = person.json("token list");
    let eve = tokens.as_array().unwrap().iter().find(|token| token["user"] == "eve").unwrap();
    assert_eq!(eve["state"], "valid");
    let id = eve["token_id"].as_str().unwrap();

    let bound = person.line("role bind viewer user:eve", 0);
    let binding = bound.split(':').next().unwrap();
    assert!(person.line("role bindings", 0).contains("user:eve"));
    person.line(&format!("role unbind {binding}"), 0);
    let part = ["role", "bind", "operator", "user:eve", "--selector", "labels.team=ml"];
    let bound = person.run(&part, 0);
    assert!(bound.contains("operator of user:eve for labels.team=ml bound"), "{bound}");
    assert!(person.line("role bindings", 0).contains("labels.team=ml"));
    person.line(&format!("role unbind {}", bound.split(':').next().unwrap()), 0);
    let wrong = person.line("role bind operator user:eve --selector team=ml", 2);
    assert!(wrong.contains("selector") && wrong.contains("labels.KEY"), "{wrong}");
    let in_use = person.line("role delete night", 2);
    assert!(in_use.contains("farrier role unbind rb-"), "{in_use}");
    person.line(&format!("token revoke {id}"), 0);
    let found = person.line(&format!("token revoke {id}"), 2);
    assert!(found.contains("revoked before"), "{found}");

    assert!(person.line("audit list --user admin", 0).contains("AccessService/CreateToken"));
    assert!(person.line("audit status", 0).contains("No stream; set [audit]"));
    assert!(person.line("audit verify", 0).contains("all as they were written"));
    let wrong = person.line("audit verify --checkpoint x", 2);
    assert!(wrong.contains("write POSITION:SEAL"), "{wrong}");

    let tls = dir.join("tls");
    let made = person.line(&format!("tls init {}", tls.display()), 0);
    assert!(made.contains("server.pem") && tls.join("ca.key").exists(), "{made}");
    person.line(&format!("tls init {}", tls.display()), 2);
    person.line(&format!("tls renew {}", tls.display()), 0);

    approvals(person);

    let none = person.line("context use prod", 2);
    assert!(none.contains("there is no context prod; known: none"), "{none}");
    person.line("context delete prod", 2);
    assert!(person.line("context list", 0).contains("farrier login URL"));
    person.line("login http://127.0.0.1:9", 4);
    let no_database = format!("token recover --database {}/none --out {out}", dir.display());
    person.line(&no_database, 4);
}

/// A second person is not at this terminal: `approvals.rs` has two.
fn approvals(person: &Terminal) {
    let policy = person.line("approval policy set --permission destroy --permission power", 0);
    assert!(policy.contains("destroy, power") && policy.contains("60 min"), "{policy}");
    assert_eq!(person.json("approval policy get")["lifetime_seconds"], 3600);
    person.line("approval policy set", 2);
    person.line("approval policy set --permission view", 2);
    person.line("approval policy set --none --permission destroy", 2);
    let long = person.line("approval policy set --permission destroy --expires-in 200h", 2);
    assert!(long.contains("give 1 minute to 7 days"), "{long}");
    assert!(person.line("approval policy set --none", 0).contains("No request needs"));
    assert_eq!(person.json("approval list --all").as_array().map(Vec::len), Some(0));
    for line in ["approve", "approval get", "approval approve", "approval deny"] {
        let unknown = person.line(&format!("{line} apr-01m7q5d4h1z9w8e0a2b3"), 2);
        assert!(unknown.contains("no approval apr-01m7q5d4h1z9w8e0a2b3 is known"), "{unknown}");
    }
}
