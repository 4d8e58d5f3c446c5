//! Labels and taints of Kubernetes nodes.

use model::effect::{
    KubeadmOptions, MAX_TAINTS, NodeLabels, Taint, TaintEffect, check_node_labels, check_taints,
};
use model::text::MAX_LABELS;

#[test]
fn keys_and_values_are_those_of_kubernetes() {
    let check = |key: &str, value: &str| {
        check_node_labels("f", &NodeLabels::from([(key.into(), value.into())]))
    };
    let long = "a".repeat(63);
    for good in ["zone", "a.b_c-D", "example.com/zone", "node-role.kubernetes.io/gpu", &long] {
        assert_eq!(check(good, ""), Ok(()), "{good}");
    }
    let longer = format!("{long}a");
    for bad in ["", "/a", "a/", "a/b/c", "-a", "a-", "a b", "Example.com/a", "a..b/c", "ä", &longer]
    {
        assert!(check(bad, "").is_err(), "{bad}");
    }
    for good in ["", "1", "a.b", "ubuntu-2204", &long] {
        assert_eq!(check("zone", good), Ok(()), "{good}");
    }
    for bad in [" ", "-a", "a/b", "a=b", "a\n", &longer] {
        assert!(check("zone", bad).is_err(), "{bad}");
    }
}

#[test]
fn refusals_name_the_entry() {
    let labels = NodeLabels::from([("zone".into(), "not a value".into())]);
    let refusal = check_node_labels("join.labels", &labels).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("join.labels[zone]"));
    let many = (0..=MAX_LABELS).map(|n| (format!("k{n}"), String::new())).collect();
    let refusal = check_node_labels("join.labels", &many).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("join.labels"));

    let taint =
        |key: &str, value: &str, effect| Taint { key: key.into(), value: value.into(), effect };
    use TaintEffect::{NoExecute, NoSchedule};
    let table = [
        (vec![taint("gpu", "", NoSchedule), taint("gpu", "x", NoExecute)], None),
        (vec![taint("gpu!", "", NoSchedule)], Some("t[0].key")),
        (vec![taint("gpu", "a b", NoSchedule)], Some("t[0].value")),
        (vec![taint("g", "", NoSchedule), taint("g", "x", NoSchedule)], Some("t[1].key")),
        (vec![taint("g", "", NoSchedule); MAX_TAINTS + 1], Some("t")),
    ];
    for (taints, field) in table {
        let refused = check_taints("t", &taints).err().and_then(|refusal| refusal.field);
        assert_eq!(refused.as_deref(), field, "{taints:?}");
    }
}

#[test]
fn a_taint_reads_as_kubectl_writes_it() {
    let taint = |value: &str| Taint {
        key: "gpu".into(),
        value: value.into(),
        effect: TaintEffect::NoSchedule,
    };
    assert_eq!(taint("").to_string(), "gpu:NoSchedule");
    assert_eq!(taint("a100").to_string(), "gpu=a100:NoSchedule");
    for effect in TaintEffect::ALL {
        assert_eq!(serde_json::to_value(effect).unwrap(), effect.as_str());
    }
}

#[test]
fn kubeadm_options_are_checked_with_the_plan() {
    let arguments =
        |text: &str| KubeadmOptions { arguments: vec![text.into()], ..KubeadmOptions::default() };
    for good in
        ["--v=5", "--cri-socket=unix:///run/crio/crio.sock", "--patches=/etc/k8s/patches dir"]
    {
        assert_eq!(arguments(good).check("f"), Ok(()), "{good}");
    }
    for bad in [
        "",
        "v=5",
        "-v",
        "--token=x",
        "--discovery-file=f",
        "--tls-bootstrap-token=x",
        "--config",
        "--node-name=n",
        "--a=\nb",
    ] {
        let refusal = arguments(bad).check("f").unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("f.arguments[0]"), "{bad}");
    }
    let ignored = |text: &str| KubeadmOptions {
        ignore_preflight_errors: vec!["Swap".into(), text.into()],
        ..KubeadmOptions::default()
    };
    assert_eq!(ignored("FileAvailable--etc-kubernetes-kubelet.conf").check("f"), Ok(()));
    for bad in ["", "a b", "x;id", "a,b"] {
        let refusal = ignored(bad).check("f").unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("f.ignore_preflight_errors[1]"), "{bad}");
    }
    let many = KubeadmOptions { arguments: vec!["--v=5".into(); 33], ..KubeadmOptions::default() };
    assert_eq!(many.check("f").unwrap_err().field.as_deref(), Some("f.arguments"));
}
