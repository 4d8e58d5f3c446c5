//! The events of a site: its MAAS answers or not, and its nodes are silent, drift, or are as
//! expected.

use super::{AT_ONCE, Explore, LifecycleEvent};
use model::id::SiteId;
use model::machine::Labels;
use model::site::{Site, SiteReport, SiteSpec, SiteState};
use model::time::Timestamp;

impl Explore for Site {
    const TITLE: &'static str = "The states of a site";
    const ABOUT: &'static str = "A site is a MAAS and the nodes behind it. It is moved by who looks at it: whether its MAAS answers, and whether so many of its nodes are \
         silent, or otherwise than expected, that the site or the way to it is to blame. Each takes back only what it has said itself.";

    fn fresh() -> Self {
        let id = SiteId::trusted("site-1");
        Self::new(&id, SiteSpec::default(), Labels::new(), Timestamp::default())
    }

    fn events(&self) -> Vec<LifecycleEvent<Self>> {
        let some = |message: &str| Some(message.to_string());
        let reports = [
            ("its MAAS answers", SiteReport::Answered(1)),
            ("its MAAS does not answer", SiteReport::Unreachable("it does not answer".into())),
            ("many of its nodes fall silent", SiteReport::Silence(some("many are silent"))),
            ("its nodes send heartbeats", SiteReport::Silence(None)),
            ("many of its nodes drift", SiteReport::Drift(some("many drift"))),
            ("its nodes are as expected", SiteReport::Drift(None)),
        ];
        let reported = reports.map(|(what, report)| {
            let record = self.apply_report(&report, Timestamp::default());
            LifecycleEvent { name: what, record, context: () }
        });
        let nothing = LifecycleEvent { name: AT_ONCE, record: self.clone(), context: () };
        std::iter::once(nothing).chain(reported).collect()
    }

    fn advice(&self) -> &'static str {
        match self.state() {
            SiteState::New => "wait for the first look, or `farrier site check <site>`",
            SiteState::Connected => "`farrier node list --site <site>`",
            SiteState::Unreachable => "`farrier site check <site>`",
            SiteState::CutOff => "look at the way to the site, not at its nodes",
        }
    }
}
