//! Decisions of a graceful power-off, a forced one, and their timeouts.

use model::effect::{MAX_GRACEFUL_SECONDS, PowerOffPolicy};

fn power_off(graceful_seconds: Option<u32>, force: Option<bool>) -> PowerOffPolicy {
    PowerOffPolicy { graceful_seconds, force }
}

#[test]
fn only_what_can_be_meant_is_taken() {
    let at = |name: &str| format!("step.{name}");
    for good in [
        PowerOffPolicy::PROVIDER_DEFAULT,
        power_off(Some(0), None),
        power_off(Some(0), Some(true)),
        power_off(Some(MAX_GRACEFUL_SECONDS), Some(false)),
    ] {
        assert_eq!(good.check(at), Ok(()), "{good:?}");
    }
    for bad in [power_off(Some(MAX_GRACEFUL_SECONDS + 1), None), power_off(Some(0), Some(false))] {
        let refusal = bad.check(at).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("step.graceful_seconds"), "{bad:?}");
    }
    let refusal = power_off(None, Some(true)).check_absent(at, "has no use").unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("step.force"));
    assert_eq!(PowerOffPolicy::PROVIDER_DEFAULT.check_absent(at, "has no use"), Ok(()));
}

#[test]
fn what_is_said_first_counts() {
    let first = power_off(Some(5), None);
    assert_eq!(first.or(power_off(Some(9), Some(false))), power_off(Some(5), Some(false)));
    assert_eq!(PowerOffPolicy::PROVIDER_DEFAULT.or(first), first);
}
