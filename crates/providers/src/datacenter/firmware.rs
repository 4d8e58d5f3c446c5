//! Updates one firmware component of a device to a version.
//!
//! The file is fetched and verified before the device is called; a component that already has the
//! version is not changed. The checkpoint is stored before the update is requested. From there it
//! cannot be cancelled: the task is followed to its end, also through a restart of the BMC, and the
//! version is read back. A requested update that cannot be found again is never requested a second
//! time. `stage` decides, this file acts.

mod stage;

use super::controller::Controller;
use super::exec::stopped_before_start;
use super::provider_calls::{CallCheckpoint, StoredCheckpoint, key_conflict};
use super::{Datacenter, TargetCall};
use crate::clock::now;
use crate::fetch::{FetchedFile, redact_url};
use crate::governor::Priority;
use crate::http_client::upload::sending_time;
use crate::port::{Journal, Target};
use crate::redfish::{FirmwareImage, TaskRef, UpdateMethod, UpdateServiceState};
use model::effect::{CallOutcome, CallResult, CallVerb, DeviceFacts, ProviderAnswer, ProviderCall};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
pub use stage::FirmwareTimeouts;
pub(super) use stage::UpdateStage;
use stage::{
    UpdateObservation, UpdateStep, choose_method, fault_after_request, is_http, next_step,
    request_fault,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The most existing tasks that are stored. With more, the new task could not be recognized.
const MAX_STORED_TASKS: usize = 200;
/// The time that a stop waits for the update to end. Less than the timeout of a call.
const STOP_WAIT: Duration = Duration::from_secs(20);

/// The desired version of a component, and its file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirmwareRequest<'a> {
    pub component: &'a str,
    pub version: &'a str,
    pub url: &'a str,
    pub sha256: &'a str,
}

/// The stage of an update, and the version that it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UpdateProgress {
    stage: UpdateStage,
    from: Option<String>,
}

impl UpdateProgress {
    const BEGUN: Self = Self { stage: UpdateStage::Begun, from: None };

    fn at(&self, stage: UpdateStage) -> Self {
        Self { stage, from: self.from.clone() }
    }

    fn checkpoint(&self) -> CallCheckpoint {
        CallCheckpoint::Firmware { stage: self.stage.clone(), from: self.from.clone() }
    }
}

/// A component before the update.
struct ComponentBefore {
    version: String,
    target: String,
    offer: UpdateServiceState,
    tasks: Vec<String>,
}

impl Datacenter {
    pub(super) async fn update_firmware(
        &self,
        request: TargetCall<'_>,
        requested: FirmwareRequest<'_>,
    ) -> CallResult {
        let TargetCall { target, call, journal } = request;
        let work = UpdateWork { datacenter: self, target, call, request: requested, journal };
        match call.verb {
            CallVerb::Perform | CallVerb::Follow => {
                match self.begin_or_recall(call, UpdateProgress::BEGUN.checkpoint()).await? {
                    None => Ok(ProviderAnswer::NeverStarted),
                    Some(before) => work.resume(before).await,
                }
            }
            CallVerb::GetStatus => work.get_status().await,
            CallVerb::Observe => work.observe().await,
            CallVerb::Stop => work.stop().await,
        }
    }
}

/// One provider call to update a component.
struct UpdateWork<'a> {
    datacenter: &'a Datacenter,
    target: &'a Target,
    call: &'a ProviderCall,
    request: FirmwareRequest<'a>,
    journal: &'a Journal,
}

impl UpdateWork<'_> {
    async fn call<T>(&self, work: impl AsyncFnOnce(&Controller) -> Result<T>) -> Result<T> {
        self.datacenter.call_bmc(self.target, work).await
    }

    async fn compare_and_swap(
        &self,
        before: &UpdateProgress,
        after: UpdateProgress,
    ) -> Result<UpdateProgress> {
        self.datacenter
            .compare_and_swap(&self.call.key, before.checkpoint(), after.checkpoint())
            .await?;
        Ok(after)
    }

    async fn resume(&self, before: StoredCheckpoint) -> CallResult {
        match before {
            StoredCheckpoint::StoppedBeforeStart => Err(stopped_before_start(&self.call.key)),
            StoredCheckpoint::Checkpoint(CallCheckpoint::Firmware { stage, from }) => {
                self.execute(UpdateProgress { stage, from }).await
            }
            StoredCheckpoint::Checkpoint(_) => Err(key_conflict()),
        }
    }

    async fn get_status(&self) -> CallResult {
        use StoredCheckpoint::StoppedBeforeStart;
        let mark = match self.datacenter.checkpoint(&self.call.key).await? {
            None | Some(StoppedBeforeStart) => return Ok(ProviderAnswer::NeverStarted),
            Some(StoredCheckpoint::Checkpoint(CallCheckpoint::Firmware { stage, from })) => {
                UpdateProgress { stage, from }
            }
            Some(StoredCheckpoint::Checkpoint(_)) => return Err(key_conflict()),
        };
        Ok(match &mark.stage {
            UpdateStage::Stopped => ProviderAnswer::NeverStarted,
            UpdateStage::Begun | UpdateStage::Task { .. } => ProviderAnswer::UnderWay,
            UpdateStage::Done => ProviderAnswer::Done(self.outcome(mark.from)),
            stage @ (UpdateStage::Requested { .. } | UpdateStage::Verifying { .. }) => {
                let observation = self.observe_update(stage).await?;
                match self.next_step(stage, &observation) {
                    UpdateStep::Done => ProviderAnswer::Done(self.outcome(mark.from)),
                    UpdateStep::Fail(fault)
                        if fault.code.effect_outcome() == EffectOutcome::Unknown =>
                    {
                        ProviderAnswer::Unknown(fault.message)
                    }
                    // `Follow` reports how it failed.
                    UpdateStep::Wait | UpdateStep::Become(_) | UpdateStep::Fail(_) => {
                        ProviderAnswer::UnderWay
                    }
                }
            }
        })
    }

    fn next_step(&self, stage: &UpdateStage, observation: &UpdateObservation) -> UpdateStep {
        next_step(
            stage,
            observation,
            self.request.version,
            now(),
            self.datacenter.settings.firmware.settle,
        )
    }

    /// Checks that the component has the version, regardless of who installed it.
    async fn observe(&self) -> CallResult {
        let observed = self.version().await?;
        Ok(match observed == self.request.version {
            true => ProviderAnswer::Done(self.outcome(None)),
            false => {
                ProviderAnswer::Differs(format!("{} is at {observed}", self.request.component))
            }
        })
    }

    /// Before the request nothing has happened. Afterwards it cannot be cancelled: the update is
    /// followed, so that no device is left half written.
    async fn stop(&self) -> CallResult {
        let Some(CallCheckpoint::Firmware { stage, from }) =
            self.datacenter.bar(&self.call.key).await?
        else {
            return Ok(ProviderAnswer::Stopped);
        };
        let mark = UpdateProgress { stage, from };
        match mark.stage {
            UpdateStage::Begun => {
                self.compare_and_swap(&mark, mark.at(UpdateStage::Stopped)).await?;
                Ok(ProviderAnswer::Stopped)
            }
            UpdateStage::Stopped => Ok(ProviderAnswer::Stopped),
            UpdateStage::Done => Ok(ProviderAnswer::Done(self.outcome(mark.from))),
            UpdateStage::Requested { .. }
            | UpdateStage::Task { .. }
            | UpdateStage::Verifying { .. } => {
                match tokio::time::timeout(STOP_WAIT, self.follow(mark)).await {
                    Ok(Err(fault)) if fault.code.effect_outcome() == EffectOutcome::NotApplied => {
                        let message = format!("firmware: it ended badly: {}", fault.message);
                        self.journal.write_line(message).await;
                        Ok(ProviderAnswer::Stopped)
                    }
                    Ok(other) => other,
                    // Still in progress and not stoppable: the engine repeats the stop.
                    Err(_) => Ok(ProviderAnswer::UnderWay),
                }
            }
        }
    }

    async fn execute(&self, mark: UpdateProgress) -> CallResult {
        match mark.stage {
            UpdateStage::Begun => self.install(&mark).await,
            UpdateStage::Done => Ok(ProviderAnswer::Done(self.outcome(mark.from))),
            UpdateStage::Stopped => Err(stopped_before_start(&self.call.key)),
            UpdateStage::Requested { .. }
            | UpdateStage::Task { .. }
            | UpdateStage::Verifying { .. } => self.follow(mark).await,
        }
    }

    async fn install(&self, begun: &UpdateProgress) -> CallResult {
        let before = self.read_component().await?;
        let FirmwareRequest { component, version, .. } = self.request;
        if before.version == version {
            self.journal.write_line(format!("firmware: {component} is at {version} already")).await;
            self.compare_and_swap(begun, begun.at(UpdateStage::Done)).await?;
            return Ok(ProviderAnswer::Done(self.outcome(None)));
        }
        let message =
            format!("firmware: {component} is at {}, {version} is wanted", before.version);
        self.journal.write_line(message).await;
        let requested = self.request_update(begun, before).await?;
        self.follow(requested).await
    }

    /// Reads everything that the update needs before the device is changed.
    async fn read_component(&self) -> Result<ComponentBefore> {
        let component = self.request.component;
        self.call(async |bmc| {
            let all = bmc.components().await?;
            let found = all.find(component)?;
            if found.updateable == Some(false) {
                let message = format!("the device says that {component} cannot be updated");
                return Err(Fault::new(FaultCode::NotSupported, message));
            }
            let updates = bmc.updates()?;
            let tasks = match updates.tasks().await {
                Ok(tasks) => tasks.iter().map(TaskRef::to_string).collect(),
                Err(fault) if fault.code == FaultCode::NotSupported => Vec::new(),
                Err(fault) => return Err(fault),
            };
            let offer = updates.read_state().await?;
            Ok(ComponentBefore {
                version: found.version.clone(),
                target: found.path.clone(),
                offer,
                tasks,
            })
        })
        .await
    }

    /// Fetches the file, requests the update, and stores the device's task.
    async fn request_update(
        &self,
        begun: &UpdateProgress,
        before: ComponentBefore,
    ) -> Result<UpdateProgress> {
        if !before.offer.enabled() {
            let message = "updates are switched off on the device (ServiceEnabled is false)";
            return Err(Fault::new(FaultCode::NotSupported, message));
        }
        let way = choose_method(&before.offer.methods(), self.request.url)?;
        let file = self.fetch_file().await?;
        if let (Some(file), Some(most)) = (&file, before.offer.max_image_bytes())
            && file.size > most
        {
            let message = format!(
                "{} has {} bytes, and the device takes {most} at most",
                redact_url(self.request.url),
                file.size
            );
            return Err(Fault::new(FaultCode::NotSupported, message));
        }
        let tasks = (before.tasks.len() <= MAX_STORED_TASKS).then_some(before.tasks);
        let stage = UpdateStage::Requested { since: now(), tasks_before: tasks };
        let requested = UpdateProgress { stage, from: Some(before.version) };
        self.journal.write_line(format!("firmware: asking by {}", way.as_str())).await;
        let targets = [before.target];
        let named = match (way, file) {
            (UpdateMethod::SimpleUpdate, _) => {
                self.compare_and_swap(begun, requested.clone()).await?;
                let url = self.request.url;
                let request = async |bmc: &Controller| {
                    bmc.updates()?.fetch(&before.offer, url, &targets).await
                };
                self.call(request).await
            }
            (UpdateMethod::MultipartPush | UpdateMethod::HttpPush, None) => {
                Err(unfetchable(self.request.url))
            }
            (way @ (UpdateMethod::MultipartPush | UpdateMethod::HttpPush), Some(file)) => {
                self.send(way, &before.offer, &file, &targets, (begun, &requested)).await
            }
        };
        let next = match named.map_err(request_fault)? {
            Some(task) => {
                self.journal
                    .write_line(format!("firmware: the device works on it as {task}"))
                    .await;
                UpdateStage::Task { task: task.to_string() }
            }
            None => UpdateStage::Verifying { since: now(), ended: false },
        };
        self.compare_and_swap(&requested, requested.at(next)).await.map_err(fault_after_request)
    }

    /// Uploads the file. Stores the checkpoint before the last piece, which makes the request.
    async fn send(
        &self,
        way: UpdateMethod,
        offer: &UpdateServiceState,
        file: &FetchedFile,
        targets: &[String],
        (begun, requested): (&UpdateProgress, &UpdateProgress),
    ) -> Result<Option<TaskRef>> {
        let limit = self.datacenter.settings.call_timeout + sending_time(file.size);
        let last = async || self.compare_and_swap(begun, requested.clone()).await.map(drop);
        let image = FirmwareImage {
            file: Arc::clone(&file.file),
            size: file.size,
            sha256: file.sha256.clone(),
        };
        let send = async |bmc: &Controller| {
            let updates = bmc.updates()?;
            match way {
                UpdateMethod::HttpPush => updates.push_raw(offer, image, targets, last).await,
                UpdateMethod::MultipartPush | UpdateMethod::SimpleUpdate => {
                    updates.push_multipart(offer, image, targets, last).await
                }
            }
        };
        self.datacenter.bmcs.call(self.target, Priority::Operator, limit, send).await
    }

    /// The file, if Farrier can fetch it. Otherwise its checksum is not verified.
    async fn fetch_file(&self) -> Result<Option<Arc<FetchedFile>>> {
        let FirmwareRequest { url, sha256, .. } = self.request;
        if !is_http(url) {
            let message = format!(
                "firmware: {} is not fetched by us, so its checksum is not compared",
                redact_url(url)
            );
            self.journal.write_line(message).await;
            return Ok(None);
        }
        let file = self.datacenter.fetcher.fetch(url, sha256).await?;
        self.journal
            .write_line(format!("firmware: fetched {} bytes, the checksum is right", file.size))
            .await;
        Ok(Some(file))
    }

    /// Follows the update until the device reports the version.
    async fn follow(&self, mut mark: UpdateProgress) -> CallResult {
        let timeout = self.datacenter.settings.firmware;
        let mut last_seen = now();
        let mut reported = None;
        loop {
            let observation = match self.observe_update(&mark.stage).await {
                Ok(observation) => observation,
                Err(fault)
                    if is_away(&fault) && now().since(last_seen) < timeout.max_unreachable =>
                {
                    tokio::time::sleep(timeout.poll_interval).await;
                    mark = self.extend_settle_time(mark).await?;
                    continue;
                }
                Err(fault) => return Err(fault_after_request(fault)),
            };
            last_seen = now();
            self.log_progress(&observation, &mut reported).await;
            match self.next_step(&mark.stage, &observation) {
                UpdateStep::Wait => tokio::time::sleep(timeout.poll_interval).await,
                UpdateStep::Become(next) => {
                    mark = self.compare_and_swap(&mark, mark.at(next)).await?
                }
                UpdateStep::Done => {
                    self.compare_and_swap(&mark, mark.at(UpdateStage::Done)).await?;
                    return Ok(ProviderAnswer::Done(self.outcome(mark.from)));
                }
                UpdateStep::Fail(fault) => return Err(fault),
            }
        }
    }

    /// An unreachable device gets its settle time again, counted from the last failed read.
    async fn extend_settle_time(&self, mark: UpdateProgress) -> Result<UpdateProgress> {
        let UpdateStage::Verifying { since, ended } = mark.stage else { return Ok(mark) };
        if now().since(since) <= self.datacenter.settings.firmware.settle / 2 {
            return Ok(mark);
        }
        let next = mark.at(UpdateStage::Verifying { since: now(), ended });
        self.compare_and_swap(&mark, next).await
    }

    async fn log_progress(&self, observation: &UpdateObservation, reported: &mut Option<String>) {
        let UpdateObservation::Task(observed) = observation else { return };
        let percent = observed.percent.map(|percent| format!(", {percent} %")).unwrap_or_default();
        let message =
            observed.messages.last().map(|message| format!(": {message}")).unwrap_or_default();
        let line = format!("firmware: {}{percent}{message}", observed.state.as_str());
        if reported.as_ref() != Some(&line) {
            self.journal.write_line(&line).await;
            *reported = Some(line);
        }
    }

    /// Reads the task while there is one, else the version and the tasks that are new.
    async fn observe_update(&self, stage: &UpdateStage) -> Result<UpdateObservation> {
        if let UpdateStage::Task { task } = stage {
            let Some(task) = TaskRef::parse(task) else { return Ok(UpdateObservation::TaskGone) };
            let probe = async |bmc: &Controller| bmc.updates()?.task(&task).await;
            return match self.call(probe).await {
                Ok(observed) => Ok(UpdateObservation::Task(observed)),
                Err(fault) if fault.code == FaultCode::TaskLost => Ok(UpdateObservation::TaskGone),
                Err(fault) => Err(fault),
            };
        }
        let version = self.version().await?;
        let mut new = Vec::new();
        if let UpdateStage::Requested { tasks_before: Some(before), .. } = stage
            && version != self.request.version
        {
            new = self.new_tasks(before).await?;
        }
        Ok(UpdateObservation::Version { version, new })
    }

    /// The update tasks that were created after the request.
    async fn new_tasks(&self, before: &[String]) -> Result<Vec<String>> {
        let probe = async |bmc: &Controller| {
            let updates = bmc.updates()?;
            let mut new = Vec::new();
            for task in updates.tasks().await? {
                if !before.contains(&task.to_string()) && updates.is_update(&task).await? {
                    new.push(task.to_string());
                }
            }
            Ok(new)
        };
        match self.call(probe).await {
            Err(fault) if fault.code == FaultCode::NotSupported => Ok(Vec::new()),
            other => other,
        }
    }

    async fn version(&self) -> Result<String> {
        let component = self.request.component;
        let probe =
            async |bmc: &Controller| Ok(bmc.components().await?.find(component)?.version.clone());
        self.call(probe).await
    }

    /// `from` is None when nothing was replaced.
    fn outcome(&self, from: Option<String>) -> CallOutcome {
        let FirmwareRequest { component, version, .. } = self.request;
        let text = match from {
            None => format!("{component} is already at {version}, and was left alone"),
            Some(_) => format!("{component} is at {version}"),
        };
        let firmware = BTreeMap::from([(component.to_owned(), version.to_owned())]);
        let facts = DeviceFacts { firmware, replaced: from, ..DeviceFacts::default() };
        CallOutcome { message: text, facts: Some(facts), ..CallOutcome::default() }
    }
}

fn unfetchable(url: &str) -> Fault {
    let message =
        format!("the device wants the file sent, and {} cannot be fetched by us", redact_url(url));
    Fault::new(FaultCode::NotSupported, message)
}

/// A restarting device is unreachable, drops connections, or has services that are not ready.
fn is_away(fault: &Fault) -> bool {
    let half_there = matches!(
        fault.code,
        FaultCode::AnswerLost
            | FaultCode::AnswerGarbled
            | FaultCode::EffectFailed
            | FaultCode::NotSupported
    );
    fault.code.peer_unreachable() || half_there
}
