use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use providers::maas::*;
use serde_json::json;

fn output(text: &str) -> ScriptResult {
    let value = json!({"name": "install.log", "exit_status": 1, "output": STANDARD.encode(text)});
    serde_json::from_value(value).unwrap()
}

/// The text is whole: it is cut after secrets are masked in it.
#[test]
fn logs_are_decoded() {
    assert_eq!(output("curtin: failed\n").output, "curtin: failed\n");
    let long = format!("{}why", "x".repeat(256 * 1024));
    assert_eq!(output(&long).output, long);
    let silent: ScriptResult =
        serde_json::from_value(json!({"name": "a", "output": null})).unwrap();
    assert_eq!((silent.output.as_str(), silent.exit_status), ("", None));
}
