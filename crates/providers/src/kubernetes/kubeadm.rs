//! The call of `kubeadm join` on a host: the script, and the config file with what Farrier knows.

use super::JoinMaterial;
use model::effect::KubeadmOptions;
use model::fault::{Fault, FaultCode, Result};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

const JOIN_CONFIGURATION: &str = "JoinConfiguration";
/// kubeadm needs root. Where the login is another user, sudo must need no password.
pub const PRELUDE: &str = "PATH=$PATH:/usr/sbin:/usr/local/bin; SUDO=; \
    [ \"$(id -u)\" = 0 ] || ! command -v sudo >/dev/null || SUDO='sudo -n'";

/// The script that joins the host under this name. The token is in a file in the folder of the job,
/// which is removed when kubeadm has ended: every user of a host sees the arguments of a process.
pub fn join_script(
    material: &JoinMaterial,
    options: &KubeadmOptions,
    node_name: &str,
) -> Result<SecretString> {
    let (option, content) = match options.config.is_empty() {
        true => ("--discovery-file", discovery_file(material)),
        false => ("--config", join_config(material, options, node_name)?),
    };
    let mut arguments = vec![format!("join {option} \"$FILE\"")];
    if options.config.is_empty() {
        arguments.push(format!("--node-name {node_name}"));
    }
    if !options.ignore_preflight_errors.is_empty() {
        let ignored = options.ignore_preflight_errors.join(",");
        arguments.push(format!("--ignore-preflight-errors={}", quote(&ignored)));
    }
    arguments.extend(options.arguments.iter().map(|argument| quote(argument)));
    // A shell that a signal ends does not run its EXIT trap; one that exits does. The content is
    // JSON, so none of its lines is the end marker.
    let script = format!(
        "{PRELUDE}\numask 077\nFILE=${{FARRIER_JOB_FOLDER:?}}/join\n\
         trap 'rm -f \"$FILE\"' EXIT\ntrap 'exit 143' TERM INT HUP\n\
         cat >\"$FILE\" <<'END_OF_FILE' || exit\n{content}\nEND_OF_FILE\n\
         $SUDO env \"PATH=$PATH\" kubeadm {}\n",
        arguments.join(" ")
    );
    Ok(script.into())
}

/// A kubeconfig with the token. JSON is YAML, so kubeadm reads it.
fn discovery_file(material: &JoinMaterial) -> String {
    const NAME: &str = "farrier";
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": NAME,
            "cluster": {
                "server": format!("https://{}", material.server),
                "certificate-authority-data": material.ca_data,
            },
        }],
        "users": [{ "name": NAME, "user": { "token": material.token.expose_secret() } }],
        "contexts": [{ "name": NAME, "context": { "cluster": NAME, "user": NAME } }],
        "current-context": NAME,
    })
    .to_string()
}

/// The problem of the config of a plan, as in "is not YAML".
pub fn find_config_problem(config: &str) -> Option<String> {
    match config.is_empty() {
        true => None,
        false => read_config(config).err(),
    }
}

/// Checks the plan's config, before there is a token that a bad one would leave behind. A plan of
/// an older version may have one that is refused today.
pub fn check_config(options: &KubeadmOptions) -> Result<()> {
    find_config_problem(&options.config).map_or(Ok(()), |problem| Err(config_fault(&problem)))
}

fn config_fault(problem: &str) -> Fault {
    let message = format!("the kubeadm config of the plan {problem}");
    Fault::new(FaultCode::NotSupported, message)
}

/// The documents of the plan's config, and the index of its JoinConfiguration.
fn read_config(config: &str) -> Result<(Vec<Value>, usize), String> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(config).map_err(|_| "is not YAML".to_string())?;
    let documents: Vec<Value> = documents.into_iter().filter(Value::is_object).collect();
    let index = documents.iter().position(|one| one["kind"] == JOIN_CONFIGURATION);
    let index = index.ok_or("has no document of the kind JoinConfiguration")?;
    let fits = |value: &Value| value.is_object() || value.is_null();
    let join = &documents[index];
    let fields = ["discovery", "nodeRegistration"];
    match fields.into_iter().find(|field| !fits(&join[*field])) {
        Some(field) => Err(format!("has a {field} that is not a mapping")),
        None => Ok((documents, index)),
    }
}

/// The documents of the plan's config. The discovery and the name are added to its
/// JoinConfiguration. JSON is YAML, so kubeadm reads them.
fn join_config(
    material: &JoinMaterial,
    options: &KubeadmOptions,
    node_name: &str,
) -> Result<String> {
    let (mut documents, index) =
        read_config(&options.config).map_err(|problem| config_fault(&problem))?;
    let join = &mut documents[index];
    join["discovery"]["bootstrapToken"] = json!({
        "token": material.token.expose_secret(),
        "apiServerEndpoint": material.server,
        "caCertHashes": material.ca_hashes,
    });
    join["nodeRegistration"]["name"] = json!(node_name);
    let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
    Ok(texts.join("\n---\n"))
}

/// One word of a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn material() -> JoinMaterial {
        JoinMaterial {
            server: "k:6443".into(),
            token_id: "abcdef".into(),
            token: "abcdef.hush".into(),
            ca_hashes: vec!["sha256:00".into()],
            ca_data: "Q0E=".into(),
            expires_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn script(options: &KubeadmOptions) -> String {
        join_script(&material(), options, "n1").unwrap().expose_secret().to_owned()
    }

    #[test]
    fn arguments_are_words_of_the_shell() {
        let plain = script(&KubeadmOptions::default());
        let line = "kubeadm join --discovery-file \"$FILE\" --node-name n1\n";
        assert!(plain.starts_with(PRELUDE) && plain.ends_with(line), "{plain}");
        let more = script(&KubeadmOptions {
            arguments: vec!["--cri-socket=unix:///run/it's.sock".into()],
            ignore_preflight_errors: vec!["Swap".into(), "Mem".into()],
            ..Default::default()
        });
        let end = r"--node-name n1 --ignore-preflight-errors='Swap,Mem' '--cri-socket=unix:///run/it'\''s.sock'";
        assert!(more.trim_end().ends_with(end), "{more}");
    }

    #[test]
    fn the_token_is_in_a_file_and_in_no_argument() {
        let config = "{kind: JoinConfiguration}".to_string();
        for options in
            [KubeadmOptions::default(), KubeadmOptions { config, ..KubeadmOptions::default() }]
        {
            let script = script(&options);
            let (before, rest) = script.split_once("<<'END_OF_FILE'").unwrap();
            let (content, after) = rest.split_once("\nEND_OF_FILE\n").unwrap();
            assert!(content.contains("abcdef.hush"), "{script}");
            assert!(!before.contains("hush") && !after.contains("hush"), "{script}");
        }
        let file: Value = serde_json::from_str(&discovery_file(&material())).unwrap();
        assert_eq!(file["clusters"][0]["cluster"]["server"], "https://k:6443");
        assert_eq!(file["clusters"][0]["cluster"]["certificate-authority-data"], "Q0E=");
        assert_eq!(file["users"][0]["user"]["token"], "abcdef.hush");
    }

    #[test]
    fn a_config_gets_the_discovery_and_the_name() {
        let config = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n\
                      nodeRegistration: {criSocket: 'unix:///x', taints: []}\n---\n\
                      apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 50\n";
        let options = KubeadmOptions { config: config.into(), ..Default::default() };
        let text = join_config(&material(), &options, "n1").unwrap();
        let parts: Vec<Value> =
            text.split("\n---\n").map(|part| serde_json::from_str(part).unwrap()).collect();
        assert_eq!(parts[0]["nodeRegistration"]["name"], "n1");
        assert_eq!(parts[0]["nodeRegistration"]["criSocket"], "unix:///x");
        let token = &parts[0]["discovery"]["bootstrapToken"];
        assert_eq!(
            (&token["token"], &token["apiServerEndpoint"]),
            (&json!("abcdef.hush"), &json!("k:6443"))
        );
        assert_eq!(parts[1]["maxPods"], 50);
        let called = script(&options);
        assert!(called.contains("kubeadm join --config \"$FILE\""), "{called}");
        for bad in [
            "kind: InitConfiguration",
            "[",
            "text",
            "{kind: JoinConfiguration, discovery: text}",
            "{kind: JoinConfiguration, nodeRegistration: [a]}",
        ] {
            let options = KubeadmOptions { config: bad.into(), ..Default::default() };
            assert!(check_config(&options).is_err(), "{bad}");
            let fault = join_config(&material(), &options, "n1").unwrap_err();
            assert_eq!(fault.code, FaultCode::NotSupported, "{bad}");
        }
    }
}
