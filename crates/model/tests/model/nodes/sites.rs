//! Sites: validation of the spec, rendering of the template, and the state that follows from
//! reports.

use crate::support::at;
use model::id::SiteId;
use model::lifecycle::{Lifecycle, LifecycleDecision};
use model::machine::Labels;
use model::site::{
    Commissioning, DEFAULT_TEMPLATE, MAX_CALLS, MAX_TEMPLATE, Network, Site, SiteReport, SiteSpec,
    TemplateValues, VARIABLES, explain_site, render_template,
};

fn values() -> TemplateValues<'static> {
    TemplateValues {
        node_id: "node-1",
        machine_id: "m-1",
        hostname: "gpu-1",
        site_id: "site-1",
        farrier_url: "http://f",
        farrier_urls: "http://f http://g",
        controllers: "[\"http://f\"]",
        agent_sha256: "c0ffee",
        enrollment_token: "secret",
    }
}

#[test]
fn a_template_is_filled_in() {
    for (template, expected) in [
        ("", Ok("")),
        ("plain { braces } stay", Ok("plain { braces } stay")),
        ("{{node_id}}", Ok("node-1")),
        ("a {{ machine_id }} b {{hostname}}{{site_id}}", Ok("a m-1 b gpu-1site-1")),
        ("{{farrier_url}}/{{enrollment_token}}", Ok("http://f/secret")),
        ("{{node_id", Err("has a {{ without its }}")),
        ("{{nobody}}", Err("names \"nobody\", which is unknown")),
        ("{{}}", Err("names \"\", which is unknown")),
    ] {
        let rendered = render_template(template, &values());
        let expected = expected.map(String::from).map_err(String::from);
        assert_eq!(rendered, expected, "{template}");
    }
    for name in VARIABLES {
        assert!(
            render_template(&format!("{{{{{name}}}}}"), &values())
                .is_ok_and(|text| !text.is_empty())
        );
    }
}

#[test]
fn a_value_is_not_a_template() {
    let values = TemplateValues { hostname: "{{enrollment_token}}", ..values() };
    assert_eq!(render_template("{{hostname}}", &values).as_deref(), Ok("{{enrollment_token}}"));
}

#[test]
fn the_template_of_a_site_that_has_none_installs_the_agent() {
    let spec = SiteSpec::default();
    assert_eq!(spec.template(), DEFAULT_TEMPLATE);
    let text = render_template(spec.template(), &values()).unwrap();
    assert!(text.starts_with("#cloud-config\n"));
    for needed in [
        "token = \"secret\"",
        "controllers = [\"http://f\"]",
        "for url in http://f http://g;",
        "\"c0ffee  $agent.new\"",
        "scratch_dirs = [\"/scratch\"",
    ] {
        assert!(text.contains(needed), "{needed}");
    }
    assert!(!text.contains("{{"), "nothing is left open");
    let own = SiteSpec { cloud_init: "x".into(), ..spec };
    assert_eq!(own.template(), "x");
}

fn maas() -> SiteSpec {
    SiteSpec {
        maas_url: "http://maas:5240/MAAS".into(),
        maas_credential: "maas-key".into(),
        ..SiteSpec::default()
    }
}

#[test]
fn what_may_be_written_of_a_site() {
    let sim = SiteSpec { provider: "sim".into(), ..SiteSpec::default() };
    let mtu = |roce_mtu| Network { roce_mtu, ..Network::default() };
    for good in [
        maas(),
        sim,
        SiteSpec { image: "custom/gpu-22.04".into(), ..maas() },
        SiteSpec { cloud_init: "{{node_id}}\r\n\t".into(), ..maas() },
        SiteSpec { cloud_init: "x".repeat(MAX_TEMPLATE), ..maas() },
        SiteSpec { network: mtu(576), ..maas() },
        SiteSpec { network: mtu(65_535), ..maas() },
        SiteSpec { datasource_retries: 0, ..maas() },
        SiteSpec { datasource_retries: 5, calls_at_once: 1, calls_per_second: MAX_CALLS, ..maas() },
    ] {
        assert_eq!(good.clone().checked(), Ok(good));
    }
    let long = "x".repeat(200);
    for (bad, field) in [
        (SiteSpec { provider: "vmware".into(), ..maas() }, "provider"),
        (SiteSpec { maas_url: String::new(), ..maas() }, "maas_url"),
        (SiteSpec { maas_url: "ftp://maas/MAAS".into(), ..maas() }, "maas_url"),
        (SiteSpec { maas_credential: String::new(), ..maas() }, "maas_credential"),
        (SiteSpec { maas_credential: "Not A Name".into(), ..maas() }, "maas_credential"),
        (SiteSpec { zone: long.clone(), ..maas() }, "zone"),
        (SiteSpec { pool: long.clone(), ..maas() }, "pool"),
        (SiteSpec { storage_layout: long.clone(), ..maas() }, "storage_layout"),
        (SiteSpec { boot_disk_model: long, ..maas() }, "boot_disk_model"),
        (SiteSpec { tags: vec!["a b".into()], ..maas() }, "tags"),
        (SiteSpec { tags: vec!["x".into(); 65], ..maas() }, "tags"),
        (SiteSpec { hwe_kernel: "x".repeat(1_000), ..maas() }, "hwe_kernel"),
        (
            SiteSpec {
                commissioning: Commissioning {
                    scripts: vec!["a,b".into()],
                    ..Commissioning::default()
                },
                ..maas()
            },
            "commissioning.scripts",
        ),
        (SiteSpec { image: "jammy".into(), ..maas() }, "image"),
        (SiteSpec { image: "/jammy".into(), ..maas() }, "image"),
        (SiteSpec { image: "ubuntu/".into(), ..maas() }, "image"),
        (SiteSpec { cloud_init: "{{nobody}}".into(), ..maas() }, "cloud_init"),
        (SiteSpec { cloud_init: "a\u{7}".into(), ..maas() }, "cloud_init"),
        (SiteSpec { cloud_init: "x".repeat(MAX_TEMPLATE + 1), ..maas() }, "cloud_init"),
        (SiteSpec { network: mtu(575), ..maas() }, "network.roce_mtu"),
        (SiteSpec { network: mtu(65_536), ..maas() }, "network.roce_mtu"),
        (SiteSpec { datasource_retries: 6, ..maas() }, "datasource_retries"),
        (SiteSpec { calls_at_once: 0, ..maas() }, "calls_at_once"),
        (SiteSpec { calls_at_once: MAX_CALLS + 1, ..maas() }, "calls_at_once"),
        (SiteSpec { calls_per_second: 0, ..maas() }, "calls_per_second"),
    ] {
        let refusal = bad.checked().unwrap_err();
        assert_eq!(refusal.field, Some(format!("site.spec.{field}")), "{refusal}");
    }
}

fn site() -> Site {
    Site::new(&SiteId::trusted("site-1"), maas(), Labels::new(), at(0))
}

/// A sequence of reports, and the state after each.
#[test]
fn a_site_is_as_it_is_said_to_be() {
    let some = |message: &str| Some(message.to_string());
    let unreachable = || SiteReport::Unreachable("no answer".into());
    let driver = [
        (SiteReport::Silence(None), "New"),
        (SiteReport::Answered(3), "Connected"),
        (SiteReport::Silence(some("9 of 10")), "CutOff"),
        (SiteReport::Drift(some("8 of 10")), "CutOff"),
        (SiteReport::Silence(None), "CutOff"),
        (unreachable(), "Unreachable"),
        // Each kind of report clears only its own alarm.
        (SiteReport::Drift(None), "Unreachable"),
        (SiteReport::Silence(some("9 of 10")), "Unreachable"),
        (SiteReport::Answered(4), "CutOff"),
        (SiteReport::Silence(None), "Connected"),
    ];
    assert_eq!(Site::STATES, ["New", "Connected", "Unreachable", "CutOff"]);
    let mut site = site();
    for (second, (report, state)) in driver.into_iter().enumerate() {
        site = site.apply_report(&report, at(second as i64));
        assert_eq!((site.state().as_str(), site.state_name()), (state, state), "{report:?}");
        let alarmed = matches!(state, "Unreachable" | "CutOff");
        assert_eq!(!site.alarms().is_empty(), alarmed, "{report:?}");
        assert!(matches!(site.next(&(), at(99)), LifecycleDecision::Idle(_)));
    }
    assert_eq!(site.machines, Some(4));
    let lost = self::site()
        .apply_report(&unreachable(), at(1))
        .apply_report(&SiteReport::Drift(None), at(2));
    assert_eq!(lost.state().as_str(), "Unreachable", "although nobody has ever answered");
}

#[test]
fn an_alarm_has_been_so_since_it_was_first_said() {
    let first = site().apply_report(&SiteReport::Silence(Some("5 of 10".into())), at(1));
    let again = first.apply_report(&SiteReport::Silence(Some("6 of 10".into())), at(9));
    assert_eq!(again, first, "its counts move from look to look, and are no news");
    let alarm = again.silence.expect("it is still so");
    assert_eq!((alarm.message.as_str(), alarm.since), ("5 of 10", at(1)));
}

#[test]
fn a_site_says_why_and_what_to_type() {
    let connected = site().apply_report(&SiteReport::Answered(3), at(1));
    let unreachable = connected.apply_report(&SiteReport::Unreachable("no answer".into()), at(2));
    let cut_off = connected.apply_report(&SiteReport::Silence(Some("9 of 10".into())), at(2));
    for (site, says, types) in [
        (site(), "was not asked yet", "farrier node list --site site-1"),
        (connected, "has 3 machines", "farrier node list --site site-1"),
        (unreachable, "no answer", "farrier site check site-1"),
        (cut_off, "9 of 10", "farrier node list --site site-1 --state active"),
    ] {
        let reported = explain_site(&site);
        assert!(reported.headline.contains(says), "{}", reported.headline);
        assert_eq!(reported.next_commands.first().map(String::as_str), Some(types));
    }
}

#[test]
fn an_update_replaces_spec_and_labels() {
    let labels = |value: &str| Labels::from([("env".to_string(), value.to_string())]);
    let polled = site().apply_report(&SiteReport::Answered(8), at(1));
    let stored = polled.updated(&maas(), &labels("lab")).unwrap();
    let stored = stored.apply_report(&SiteReport::Answered(8), at(2));
    let other = SiteSpec { pool: "gpu".into(), ..maas() };
    for (spec, labels, changed) in [
        (maas(), labels("lab"), false),
        (maas(), labels("prod"), true),
        (maas(), Labels::new(), true),
        (other, labels("lab"), true),
    ] {
        let after = stored.updated(&spec, &labels).unwrap();
        assert_eq!((&after.spec, &after.head.labels), (&spec, &labels));
        assert_eq!(after != stored, changed, "{spec:?} {labels:?}");
        // A changed site has to be polled again.
        assert_eq!(after.machines.is_none(), changed, "{spec:?} {labels:?}");
    }
    let wrong = SiteSpec { calls_at_once: 0, ..maas() };
    let refusal = stored.updated(&wrong, &Labels::new()).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("site.spec.calls_at_once"));
}
