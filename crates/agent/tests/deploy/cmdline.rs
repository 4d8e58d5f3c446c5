//! Tests of the module `cmdline` alone.

use agent::cmdline::*;
use secrecy::ExposeSecret;

#[test]
fn parameters_are_found_among_others() {
    let token = "0123456789abcdef".repeat(4);
    let text = format!(
        "console=tty0 farrier.url=http://10.0.0.1:8080 farrier.token={token} farrier.mac=AA:bb:cc:dd:ee:0f quiet console=ttyS0,115200\n"
    );
    let boot = BootParameters::parse(&text).unwrap();
    assert_eq!(boot.url.to_string(), "http://10.0.0.1:8080");
    assert_eq!(boot.token.expose_secret(), token);
    assert_eq!(boot.mac, "aa:bb:cc:dd:ee:0f");
    assert_eq!(boot.consoles, ["console=tty0", "console=ttyS0,115200"]);
    assert!(!format!("{boot:?}").contains(&token));
}

#[test]
fn missing_or_invalid_parameters_are_named() {
    let token = "a".repeat(64);
    let table = [
        (String::new(), "no farrier.url="),
        ("farrier.url=http://10.0.0.1".into(), "no farrier.token="),
        ("farrier.url=http://farrier.example".into(), "farrier.url: "),
        ("farrier.url=http://10.0.0.1 farrier.token=abc".into(), "farrier.token: 64"),
        (format!("farrier.url=http://10.0.0.1 farrier.token={token}"), "no farrier.mac="),
        (
            format!("farrier.url=http://10.0.0.1 farrier.token={token} farrier.mac=aa:bb"),
            "farrier.mac: \"aa:bb\"",
        ),
    ];
    for (text, wrong) in table {
        let message = BootParameters::parse(&text).unwrap_err();
        assert!(message.contains(wrong), "{text:?}: {message}");
        assert!(!message.contains(&token));
    }
}
