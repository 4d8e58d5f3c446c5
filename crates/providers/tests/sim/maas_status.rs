use providers::maas::*;

#[test]
fn numbers_and_statuses_are_one_to_one() {
    assert_eq!(Status::ALL.len(), 23);
    for (number, status) in (0..).zip(Status::ALL) {
        assert_eq!((status.number(), Status::from_number(number)), (number, *status));
        assert_eq!(status.to_string(), status.words());
        assert!(!(status.in_progress() && status.failed()), "{status}");
        let says_so = ["ailed", "Broken", "Missing"].iter().any(|w| status.words().contains(w));
        assert_eq!(status.failed(), says_so, "{status}");
        let goes_on = status.words().split(' ').any(|name| name.ends_with("ing"));
        assert_eq!(status.in_progress(), goes_on && !says_so, "{status}");
    }
    for number in [-1, 23, i64::MAX] {
        assert_eq!(Status::from_number(number), Status::Unknown(number));
        assert_eq!(Status::from_number(number).number(), number);
    }
    assert_eq!(Status::Unknown(42).to_string(), "unknown status 42");
}
