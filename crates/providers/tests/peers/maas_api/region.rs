//! Everything that is not about one machine: the user, the choices, events and results.

use super::ops::unrecognised;
use super::state::{MaasState, USER};
use super::{Call, Reply};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const DEFAULT_EVENTS: usize = 100;
const MAX_EVENTS: usize = 1000;
/// The levels of events, the lowest first. AUDIT is a level of its own and not modelled.
const LEVELS: [&str; 5] = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
/// The beginning of every curtin log: it shows its input, including the key of the new system for
/// MAAS.
const CURTIN: &str = r"start: cmd-install/stage-curthooks/builtin/cmd-curthooks: curtin command curthooks
curthooks handling apt to target /tmp/tmpq0/target with config {'preserve_sources_list': False, 'debconf_selections': {'maas': 'cloud-init   cloud-init/datasources  multiselect MAAS\ncloud-init   cloud-init/maas-metadata-url  string http://10.0.0.1:5248/MAAS/metadata/curtin\ncloud-init   cloud-init/maas-metadata-credentials  string oauth_consumer_key=k3y&oauth_token_key=t0k3n&oauth_token_secret=s3cr3t\n'}}
request to http://10.0.0.1:5248/MAAS/metadata/status/abc failed. sleeping 1.: HTTP Error 503: Service Unavailable
";

impl MaasState {
    pub(super) fn on_region(&mut self, call: &Call, path: &[&str]) -> Reply {
        match (call.method.as_str(), path, call.op.as_deref()) {
            ("GET", ["version"], None) => {
                Reply::Json(json!({"version": self.version, "subversion": "14321-g.1",
                "capabilities": ["networks-management", "storage-deployment-ubuntu"]}))
            }
            ("GET", ["users"], Some("whoami")) => {
                Reply::Json(json!({"username": USER, "email": "a@example.com",
                "is_local": true, "is_superuser": self.is_superuser}))
            }
            ("GET", ["resourcepools"], None) => named(&self.pools),
            ("GET", ["zones"], None) => named(&self.zones),
            ("GET", ["subnets"], None) => Reply::Json(json!(self.subnets)),
            ("GET", ["boot-resources"], None) => {
                // An uploaded image is listed without `custom/` (run: 3.4.8; read: 3.4.8 to 3.7.3).
                let image = |(id, name): (usize, &String)| {
                    let (name, kind) = match name.strip_prefix("custom/") {
                        Some(name) => (name, "Uploaded"),
                        None => (name.as_str(), "Synced"),
                    };
                    json!({"id": id, "name": name, "architecture": "amd64/ga-22.04", "type": kind, "subarches": ""})
                };
                Reply::Json(self.images.iter().enumerate().map(image).collect())
            }
            ("GET", ["tags"], None) => {
                let tag = |(name, comment): &(String, String)| json!({"name": name, "comment": comment, "definition": "", "kernel_opts": null});
                Reply::Json(self.tags.iter().map(tag).collect())
            }
            ("POST", ["tags"], None) => self.create_tag(call),
            ("POST", ["tags", name], Some("update_nodes")) => self.tag(call, name),
            ("GET", ["events"], Some("query")) => self.query_events(call),
            (method, _, op) => unrecognised(method, op),
        }
    }

    fn create_tag(&mut self, call: &Call) -> Reply {
        let name = call.form.get("name").unwrap_or_default().to_owned();
        let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || !name.chars().all(fit) {
            return Reply::field("name", "Enter a valid value.");
        }
        if self.tags.iter().any(|(other, _)| *other == name) {
            return Reply::field("name", "Tag with this Name already exists.");
        }
        let comment = call.form.get("comment").unwrap_or_default().to_owned();
        self.tags.push((name.clone(), comment.clone()));
        Reply::Json(json!({"name": name, "comment": comment, "definition": ""}))
    }

    fn tag(&mut self, call: &Call, name: &str) -> Reply {
        if !self.tags.iter().any(|(other, _)| other == name) {
            return Reply::text(404, "No Tag matches the given query.");
        }
        let (mut added, mut removed) = (0, 0);
        for id in call.form.all("add") {
            let machine = self.machines.get_mut(id);
            added += usize::from(machine.is_some_and(|m| m.tags.insert(name.to_owned())));
        }
        for id in call.form.all("remove") {
            removed += usize::from(self.machines.get_mut(id).is_some_and(|m| m.tags.remove(name)));
        }
        Reply::Json(json!({"added": added, "removed": removed}))
    }

    fn query_events(&self, call: &Call) -> Reply {
        let query = &call.query;
        let number = |name: &str| query.get(name).and_then(|value| value.parse::<i64>().ok());
        let limit = number("limit").map_or(DEFAULT_EVENTS, |limit| limit.max(1) as usize);
        if limit > MAX_EVENTS {
            let words =
                format!("Requested number of events {limit} is greater than limit: {MAX_EVENTS}");
            return Reply::text(400, words);
        }
        let level = query.get("level").unwrap_or("INFO");
        let rank = |level: &str| LEVELS.iter().position(|one| *one == level);
        let Some(least) = rank(level) else {
            return Reply::text(400, format!("Unrecognised log level: {level}"));
        };
        let (after, before) = (number("after"), number("before"));
        if after.is_some() && before.is_some() {
            let words =
                "There is undetermined behaviour when both `after` and `before` are specified.";
            return Reply::text(400, words);
        }
        let fits = |event: &&Value| {
            let id = event["id"].as_i64().unwrap_or_default();
            query.get("id").is_none_or(|node| event["node"] == node)
                && event["level"].as_str().and_then(rank) >= Some(least)
                && after.is_none_or(|after| id > after)
                && before.is_none_or(|before| id < before)
        };
        // With `after`, the oldest events that match; otherwise the newest. The answer lists the
        // newest first.
        let fitting: Vec<&Value> = self.events.iter().filter(fits).collect();
        let skipped = fitting.len().saturating_sub(limit);
        let page: Vec<&Value> = match after {
            Some(_) => fitting.into_iter().take(limit).rev().collect(),
            None => fitting.into_iter().skip(skipped).rev().collect(),
        };
        Reply::Json(
            json!({"count": page.len(), "events": page, "next_uri": null, "prev_uri": null}),
        )
    }

    pub(super) fn results(&self, call: &Call, id: &str) -> Reply {
        let Some(machine) = self.machines.get(id) else {
            return Reply::text(404, "No Node matches the given query.");
        };
        let planned = &machine.planned;
        match call.query.get("type") {
            Some("installation") => {}
            Some("commissioning") => return scripts("commissioning", &planned.failed_scripts),
            Some("testing") if planned.tests => return scripts("testing", &planned.failed_tests),
            _ => return Reply::Json(json!([])),
        }
        let shows = call.query.is_true("include_output");
        let set = |(number, log): (usize, &String)| {
            let output = |text: &str| match shows {
                true => json!(STANDARD.encode(text)),
                false => Value::Null,
            };
            let log = match log.as_str() {
                "" => output(""),
                log => output(&format!("{CURTIN}{log}")),
            };
            let all = output(&format!("install.log\0{CURTIN}cloud-init.log\0no datasource found"));
            json!({"id": number + 1, "system_id": id, "type": 1, "type_name": "Installation", "results": [
                {"id": 6, "name": "/tmp/curtin-logs.tar", "status": 3, "status_name": "Failed", "exit_status": 1, "output": all},
                {"id": 7, "name": "/tmp/install.log", "status": 3, "status_name": "Failed", "exit_status": 1, "output": log}]})
        };
        Reply::Json(machine.logs.iter().enumerate().map(set).collect())
    }
}

/// The results of the scripts of a kind: one passed, the named ones failed. One that never began is
/// shown as failed too, and so is one whose result an operator suppressed (run: 3.4.8).
fn scripts(kind: &str, failed: &[&str]) -> Reply {
    let began = "Wed, 18 Nov 2026 04:18:08 -0000";
    let passed = json!({"id": 1, "name": "50-maas-01-commissioning", "status": 2, "status_name": "Passed", "exit_status": 0,
        "started": began, "suppressed": false});
    let ended = |name: &str, suppressed: bool| {
        json!({"id": 2, "name": name, "status": 3, "status_name": "Failed", "exit_status": 1, "started": began,
            "suppressed": suppressed})
    };
    let unstarted = json!({"id": 3, "name": "maas-lshw", "status": 3, "status_name": "Failed", "exit_status": null,
        "started": null, "suppressed": false});
    let mut results = vec![passed, unstarted, ended("smartctl-validate", true)];
    results.extend(failed.iter().map(|name| ended(name, false)));
    Reply::Json(json!([{"id": 1, "type_name": kind, "results": results}]))
}

fn named(names: &[String]) -> Reply {
    let one = |(id, name): (usize, &String)| json!({"id": id, "name": name, "description": null});
    Reply::Json(names.iter().enumerate().map(one).collect())
}
