//! Updates one firmware component of a device to a version.
//!
//! The file is fetched and verified before the device is called; a component that already has the
//! version is not changed. The checkpoint is stored before the update is requested. From there it
//! cannot be cancelled: the task is followed to its end, also through a restart of the BMC, and the
//! version is read back. A requested update that cannot be found again is never requested a second
//! time. `stage` decides, this file acts.

mod stage;

use super::Datacenter;
use super::controller::Controller;
use super::exec::barred;
use super::orders::{OrderCheckpoint, Remembered, two_effects};
use crate::clock::now;
use crate::fetch::{Fetched, shown};
use crate::governor::Priority;
use crate::http_client::upload::sending_time;
use crate::port::{Journal, Target};
use crate::redfish::{Image, Offer, TaskRef, Way};
use crate::state_store::Checkpoint;
use model::effect::{Answer, Facts, Order, Outcome, Verb};
use model::fault::{Code, Fault, Happened};
pub(super) use stage::Flash;
pub use stage::Patience;
use stage::{Sight, Turn, after_asked, asked_before, is_http, next, way};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many existing tasks are stored. With more, the new task could not be recognized.
const MAX_TASKS_NOTED: usize = 200;
/// How long a stop waits for the update to end. Less than the timeout of a call.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// The desired version of a component, and its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish<'a> {
    pub component: &'a str,
    pub version: &'a str,
    pub url: &'a str,
    pub sha256: &'a str,
}

/// The stage of an update, and the version that it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    stage: Flash,
    from: Option<String>,
}

impl Mark {
    const BEGUN: Self = Self { stage: Flash::Begun, from: None };

    fn at(&self, stage: Flash) -> Self {
        Self { stage, from: self.from.clone() }
    }

    fn memo(&self) -> OrderCheckpoint {
        OrderCheckpoint::Firmware { stage: self.stage.clone(), from: self.from.clone() }
    }
}

/// A component before the update.
struct Before {
    version: String,
    target: String,
    offer: Offer,
    tasks: Vec<String>,
}

impl Datacenter {
    pub(super) async fn flash(
        &self,
        target: &Target,
        order: &Order,
        wish: Wish<'_>,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let work = Work { at: self, target, order, wish, journal };
        match order.verb {
            Verb::Perform => match self.begin(&order.key, Mark::BEGUN.memo()).await? {
                None => work.carry_out(Mark::BEGUN).await,
                Some(before) => work.go_on(before).await,
            },
            Verb::Follow => match self.recall(&order.key).await? {
                None => Ok(Answer::NeverStarted),
                Some(before) => work.go_on(before).await,
            },
            Verb::GetStatus => work.inquire().await,
            Verb::Observe => work.observe().await,
            Verb::Stop => work.stop().await,
        }
    }
}

/// One provider call to update a component.
struct Work<'a> {
    at: &'a Datacenter,
    target: &'a Target,
    order: &'a Order,
    wish: Wish<'a>,
    journal: &'a Journal,
}

impl Work<'_> {
    async fn call<T>(
        &self,
        work: impl AsyncFnOnce(&Controller) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.at.bmcs.call(self.target, Priority::Operator, self.at.settings.call, work).await
    }

    async fn compare_and_swap(&self, before: &Mark, after: Mark) -> Result<Mark, Fault> {
        self.at.compare_and_swap(&self.order.key, before.memo(), after.memo()).await?;
        Ok(after)
    }

    async fn go_on(&self, before: Remembered) -> Result<Answer, Fault> {
        match before {
            Remembered::Barred => Err(barred(&self.order.key)),
            Remembered::Checkpoint(OrderCheckpoint::Firmware { stage, from }) => {
                self.carry_out(Mark { stage, from }).await
            }
            Remembered::Checkpoint(
                OrderCheckpoint::Power { .. }
                | OrderCheckpoint::Netboot { .. }
                | OrderCheckpoint::InBand { .. }
                | OrderCheckpoint::Join { .. }
                | OrderCheckpoint::Image { .. }
                | OrderCheckpoint::Drain { .. }
                | OrderCheckpoint::Uncordon
                | OrderCheckpoint::Fabric { .. },
            ) => Err(two_effects()),
        }
    }

    async fn inquire(&self) -> Result<Answer, Fault> {
        let mark = match self.at.recall(&self.order.key).await? {
            None | Some(Remembered::Barred) => return Ok(Answer::NeverStarted),
            Some(Remembered::Checkpoint(OrderCheckpoint::Firmware { stage, from })) => {
                Mark { stage, from }
            }
            Some(Remembered::Checkpoint(_)) => return Err(two_effects()),
        };
        Ok(match &mark.stage {
            Flash::Stopped => Answer::NeverStarted,
            Flash::Begun | Flash::Task { .. } => Answer::UnderWay,
            Flash::Done => Answer::Done(self.reached(mark.from)),
            stage @ (Flash::Asked { .. } | Flash::Taken { .. }) => {
                let sight = self.look(stage).await?;
                match self.turn(stage, &sight) {
                    Turn::Done => Answer::Done(self.reached(mark.from)),
                    Turn::Fail(fault) if fault.code.happened() == Happened::Maybe => {
                        Answer::Unknown(fault.said)
                    }
                    // `Follow` reports how it failed.
                    Turn::Look | Turn::Become(_) | Turn::Fail(_) => Answer::UnderWay,
                }
            }
        })
    }

    fn turn(&self, stage: &Flash, sight: &Sight) -> Turn {
        next(stage, sight, self.wish.version, now(), self.at.settings.firmware.settle)
    }

    /// Whether the component has the version, regardless of who installed it.
    async fn observe(&self) -> Result<Answer, Fault> {
        let seen = self.version().await?;
        Ok(match seen == self.wish.version {
            true => Answer::Done(self.reached(None)),
            false => Answer::Differs(format!("{} is at {seen}", self.wish.component)),
        })
    }

    /// Before the request nothing has happened. Afterwards it cannot be cancelled: the update is
    /// followed, so that no device is left half written.
    async fn stop(&self) -> Result<Answer, Fault> {
        let key = &self.order.key;
        match self.at.store.begin(key, &Checkpoint::Barred).await? {
            None | Some(Checkpoint::Barred) => return Ok(Answer::Stopped),
            Some(Checkpoint::Begun(_)) => {}
        }
        let mark = match self.at.recall(key).await? {
            Some(Remembered::Checkpoint(OrderCheckpoint::Firmware { stage, from })) => {
                Mark { stage, from }
            }
            Some(Remembered::Checkpoint(_) | Remembered::Barred) | None => {
                return Ok(Answer::Stopped);
            }
        };
        match mark.stage {
            Flash::Begun => {
                self.compare_and_swap(&mark, mark.at(Flash::Stopped)).await?;
                Ok(Answer::Stopped)
            }
            Flash::Stopped => Ok(Answer::Stopped),
            Flash::Done => Ok(Answer::Done(self.reached(mark.from))),
            Flash::Asked { .. } | Flash::Task { .. } | Flash::Taken { .. } => {
                match tokio::time::timeout(STOP_PATIENCE, self.follow(mark)).await {
                    Ok(Err(fault)) if fault.code.happened() == Happened::No => {
                        let said = format!("firmware: it ended badly: {}", fault.said);
                        self.journal.line(said).await;
                        Ok(Answer::Stopped)
                    }
                    Ok(other) => other,
                    // Still in progress and not stoppable: the engine repeats the stop.
                    Err(_) => Ok(Answer::UnderWay),
                }
            }
        }
    }

    async fn carry_out(&self, mark: Mark) -> Result<Answer, Fault> {
        match mark.stage {
            Flash::Begun => self.install(&mark).await,
            Flash::Done => Ok(Answer::Done(self.reached(mark.from))),
            Flash::Stopped => Err(barred(&self.order.key)),
            Flash::Asked { .. } | Flash::Task { .. } | Flash::Taken { .. } => {
                self.follow(mark).await
            }
        }
    }

    async fn install(&self, begun: &Mark) -> Result<Answer, Fault> {
        let before = self.before().await?;
        let Wish { component, version, .. } = self.wish;
        if before.version == version {
            self.journal.line(format!("firmware: {component} is at {version} already")).await;
            self.compare_and_swap(begun, begun.at(Flash::Done)).await?;
            return Ok(Answer::Done(self.reached(None)));
        }
        let said = format!("firmware: {component} is at {}, {version} is wanted", before.version);
        self.journal.line(said).await;
        let asked = self.ask(begun, before).await?;
        self.follow(asked).await
    }

    /// Reads everything that the update needs before the device is changed.
    async fn before(&self) -> Result<Before, Fault> {
        let component = self.wish.component;
        self.call(async |bmc| {
            let all = bmc.components().await?;
            let found = all.find(component)?;
            if found.updateable == Some(false) {
                let said = format!("the device says that {component} cannot be updated");
                return Err(Fault::new(Code::NotSupported, said));
            }
            let updates = bmc.updates()?;
            let tasks = match updates.tasks().await {
                Ok(tasks) => tasks.iter().map(TaskRef::to_string).collect(),
                Err(fault) if fault.code == Code::NotSupported => Vec::new(),
                Err(fault) => return Err(fault),
            };
            let offer = updates.offer().await?;
            Ok(Before { version: found.version.clone(), target: found.path.clone(), offer, tasks })
        })
        .await
    }

    /// Fetches the file, requests the update, and stores the device's task.
    async fn ask(&self, begun: &Mark, before: Before) -> Result<Mark, Fault> {
        if !before.offer.enabled() {
            let said = "updates are switched off on the device (ServiceEnabled is false)";
            return Err(Fault::new(Code::NotSupported, said));
        }
        let way = way(&before.offer.ways(), self.wish.url)?;
        let file = self.fetched().await?;
        if let (Some(file), Some(most)) = (&file, before.offer.most_bytes())
            && file.size > most
        {
            let said = format!(
                "{} has {} bytes, and the device takes {most} at most",
                shown(self.wish.url),
                file.size
            );
            return Err(Fault::new(Code::NotSupported, said));
        }
        let tasks = (before.tasks.len() <= MAX_TASKS_NOTED).then_some(before.tasks);
        let stage = Flash::Asked { since: now(), before: tasks };
        let asked = Mark { stage, from: Some(before.version) };
        self.journal.line(format!("firmware: asking by {}", way.as_str())).await;
        let targets = [before.target];
        let named = match (way, file) {
            (Way::Fetch, _) => {
                self.compare_and_swap(begun, asked.clone()).await?;
                let url = self.wish.url;
                let ask = async |bmc: &Controller| {
                    bmc.updates()?.fetch(&before.offer, url, &targets).await
                };
                self.call(ask).await
            }
            (Way::Form | Way::Plain, None) => Err(unfetchable(self.wish.url)),
            (way @ (Way::Form | Way::Plain), Some(file)) => {
                self.send(way, &before.offer, &file, &targets, (begun, &asked)).await
            }
        };
        let next = match named.map_err(asked_before)? {
            Some(task) => {
                self.journal.line(format!("firmware: the device works on it as {task}")).await;
                Flash::Task { task: task.to_string() }
            }
            None => Flash::Taken { since: now(), ended: false },
        };
        self.compare_and_swap(&asked, asked.at(next)).await.map_err(after_asked)
    }

    /// Uploads the file. Stores the checkpoint before the last piece, which makes the request.
    async fn send(
        &self,
        way: Way,
        offer: &Offer,
        file: &Fetched,
        targets: &[String],
        (begun, asked): (&Mark, &Mark),
    ) -> Result<Option<TaskRef>, Fault> {
        let limit = self.at.settings.call + sending_time(file.size);
        let last = async || self.compare_and_swap(begun, asked.clone()).await.map(drop);
        let image =
            Image { file: Arc::clone(&file.file), size: file.size, sha256: file.sha256.clone() };
        let send = async |bmc: &Controller| {
            let updates = bmc.updates()?;
            match way {
                Way::Plain => updates.send_plain(offer, image, targets, last).await,
                Way::Form | Way::Fetch => updates.send_form(offer, image, targets, last).await,
            }
        };
        self.at.bmcs.call(self.target, Priority::Operator, limit, send).await
    }

    /// The file, if Farrier can fetch it. Otherwise its checksum is not verified.
    async fn fetched(&self) -> Result<Option<Arc<Fetched>>, Fault> {
        let Wish { url, sha256, .. } = self.wish;
        if !is_http(url) {
            let said = format!(
                "firmware: {} is not fetched by us, so its checksum is not compared",
                shown(url)
            );
            self.journal.line(said).await;
            return Ok(None);
        }
        let file = self.at.fetcher.fetch(url, sha256).await?;
        self.journal
            .line(format!("firmware: fetched {} bytes, the checksum is right", file.size))
            .await;
        Ok(Some(file))
    }

    /// Follows the update until the device reports the version.
    async fn follow(&self, mut mark: Mark) -> Result<Answer, Fault> {
        let patience = self.at.settings.firmware;
        let mut last_seen = now();
        let mut told = None;
        loop {
            let sight = match self.look(&mark.stage).await {
                Ok(sight) => sight,
                Err(fault) if is_away(&fault) && now().since(last_seen) < patience.away => {
                    tokio::time::sleep(patience.look_every).await;
                    mark = self.later(mark).await?;
                    continue;
                }
                Err(fault) => return Err(after_asked(fault)),
            };
            last_seen = now();
            self.tell(&sight, &mut told).await;
            match self.turn(&mark.stage, &sight) {
                Turn::Look => tokio::time::sleep(patience.look_every).await,
                Turn::Become(next) => mark = self.compare_and_swap(&mark, mark.at(next)).await?,
                Turn::Done => {
                    self.compare_and_swap(&mark, mark.at(Flash::Done)).await?;
                    return Ok(Answer::Done(self.reached(mark.from)));
                }
                Turn::Fail(fault) => return Err(fault),
            }
        }
    }

    /// An unreachable device gets its settle time again, counted from the last failed read.
    async fn later(&self, mark: Mark) -> Result<Mark, Fault> {
        match mark.stage {
            Flash::Taken { since, ended }
                if now().since(since) > self.at.settings.firmware.settle / 2 =>
            {
                let next = mark.at(Flash::Taken { since: now(), ended });
                self.compare_and_swap(&mark, next).await
            }
            Flash::Begun
            | Flash::Asked { .. }
            | Flash::Task { .. }
            | Flash::Taken { .. }
            | Flash::Done
            | Flash::Stopped => Ok(mark),
        }
    }

    async fn tell(&self, sight: &Sight, told: &mut Option<String>) {
        let Sight::Task(seen) = sight else { return };
        let percent = seen.percent.map(|percent| format!(", {percent} %")).unwrap_or_default();
        let said = seen.messages.last().map(|said| format!(": {said}")).unwrap_or_default();
        let line = format!("firmware: {}{percent}{said}", seen.state.as_str());
        if told.as_ref() != Some(&line) {
            self.journal.line(&line).await;
            *told = Some(line);
        }
    }

    /// Reads the task while there is one, else the version and the tasks that are new.
    async fn look(&self, stage: &Flash) -> Result<Sight, Fault> {
        if let Flash::Task { task } = stage {
            let Some(task) = TaskRef::parse(task) else { return Ok(Sight::TaskGone) };
            let look = async |bmc: &Controller| bmc.updates()?.task(&task).await;
            return match self.call(look).await {
                Ok(seen) => Ok(Sight::Task(seen)),
                Err(fault) if fault.code == Code::TaskLost => Ok(Sight::TaskGone),
                Err(fault) => Err(fault),
            };
        }
        let version = self.version().await?;
        let new = match stage {
            Flash::Asked { before: Some(before), .. } if version != self.wish.version => {
                self.new_tasks(before).await?
            }
            Flash::Asked { .. }
            | Flash::Begun
            | Flash::Task { .. }
            | Flash::Taken { .. }
            | Flash::Done
            | Flash::Stopped => Vec::new(),
        };
        Ok(Sight::Version { version, new })
    }

    /// The update tasks that were created after the request.
    async fn new_tasks(&self, before: &[String]) -> Result<Vec<String>, Fault> {
        let look = async |bmc: &Controller| {
            let updates = bmc.updates()?;
            let mut new = Vec::new();
            for task in updates.tasks().await? {
                if !before.contains(&task.to_string()) && updates.is_update(&task).await? {
                    new.push(task.to_string());
                }
            }
            Ok(new)
        };
        match self.call(look).await {
            Err(fault) if fault.code == Code::NotSupported => Ok(Vec::new()),
            other => other,
        }
    }

    async fn version(&self) -> Result<String, Fault> {
        let component = self.wish.component;
        let look =
            async |bmc: &Controller| Ok(bmc.components().await?.find(component)?.version.clone());
        self.call(look).await
    }

    /// `from` is None when nothing was replaced.
    fn reached(&self, from: Option<String>) -> Outcome {
        let Wish { component, version, .. } = self.wish;
        let said = match from {
            None => format!("{component} is already at {version}, and was left alone"),
            Some(_) => format!("{component} is at {version}"),
        };
        let firmware = BTreeMap::from([(component.to_owned(), version.to_owned())]);
        let facts = Facts { firmware, replaced: from, ..Facts::default() };
        Outcome { said, facts: Some(facts), ..Outcome::default() }
    }
}

fn unfetchable(url: &str) -> Fault {
    let said =
        format!("the device wants the file sent, and {} cannot be fetched by us", shown(url));
    Fault::new(Code::NotSupported, said)
}

/// A restarting device is unreachable, drops connections, or has services that are not ready.
fn is_away(fault: &Fault) -> bool {
    let half_there = matches!(
        fault.code,
        Code::AnswerLost | Code::AnswerGarbled | Code::EffectFailed | Code::NotSupported
    );
    fault.code.unseen() || half_there
}
