//! Every fault code has a page.

use model::fault::FaultCode;

#[test]
fn every_code_has_a_page_that_says_what_to_do() {
    for code in FaultCode::ALL {
        let page = code.page();
        let title = format!("# {}", code.as_str());
        assert!(page.starts_with(&title), "{} must begin with {title:?}", code.as_str());
        assert!(page.contains("## What to do"), "{} says nothing to do", code.as_str());
        assert_eq!(FaultCode::parse(code.as_str()), Some(*code));
    }
}
