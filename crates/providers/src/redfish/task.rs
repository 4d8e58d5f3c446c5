//! Tasks: work that a BMC continues after its response.
//!
//! Devices name a task, a task monitor, or both. [`TaskRef`] holds the more informative one as
//! text, so that it can be checkpointed. A task that no longer exists is a fault of its own: it may
//! be complete, and only its target can show that.

use super::Bmc;
use super::classification;
use super::client::{Accepted, RedfishClient};
use super::decode::{JsonNode, local_path, shown};
use super::system::System;
use crate::http_client::{HttpRequest, HttpResponse};
use hyper::StatusCode;
use model::fault::{Fault, FaultCode, Result};
use serde_json::Value;
use std::fmt;

/// The number of a task's newest messages that are passed on.
const MAX_MESSAGES: usize = 5;

/// The path of a task or task monitor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TaskRef(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    New,
    Starting,
    Running,
    Suspended,
    Interrupted,
    Pending,
    Stopping,
    Completed,
    Killed,
    Exception,
    Service,
    Cancelling,
    Cancelled,
}

/// The status of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStatus {
    pub state: TaskState,
    pub percent: Option<u8>,
    pub messages: Vec<String>,
}

impl TaskRef {
    /// Parses the `Display` form.
    pub fn parse(text: &str) -> Option<Self> {
        local_path(text).map(Self)
    }

    /// The task that a response names. The task itself is preferred to its monitor.
    pub(super) fn named_by(accepted: &Accepted) -> Option<Self> {
        let part = JsonNode(&accepted.value);
        let is_task = part.text("@odata.type").is_some_and(|kind| kind.starts_with("#Task."))
            || part.text("TaskState").is_some();
        let task = part.as_link().filter(|_| is_task);
        let monitor = accepted.location.clone().filter(|_| accepted.status == StatusCode::ACCEPTED);
        task.or(monitor).map(Self)
    }
}

impl fmt::Display for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TaskState {
    pub const ALL: [Self; 13] = [
        Self::New,
        Self::Starting,
        Self::Running,
        Self::Suspended,
        Self::Interrupted,
        Self::Pending,
        Self::Stopping,
        Self::Completed,
        Self::Killed,
        Self::Exception,
        Self::Service,
        Self::Cancelling,
        Self::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Suspended => "Suspended",
            Self::Interrupted => "Interrupted",
            Self::Pending => "Pending",
            Self::Stopping => "Stopping",
            Self::Completed => "Completed",
            Self::Killed => "Killed",
            Self::Exception => "Exception",
            Self::Service => "Service",
            Self::Cancelling => "Cancelling",
            Self::Cancelled => "Cancelled",
        }
    }

    /// `Some(true)` for success, `Some(false)` for failure, `None` while it runs.
    pub const fn ended(self) -> Option<bool> {
        match self {
            Self::Completed => Some(true),
            Self::Killed | Self::Exception | Self::Cancelled => Some(false),
            Self::New
            | Self::Starting
            | Self::Running
            | Self::Suspended
            | Self::Interrupted
            | Self::Pending
            | Self::Stopping
            | Self::Service
            | Self::Cancelling => None,
        }
    }
}

impl Bmc {
    pub async fn task(&self, task: &TaskRef) -> Result<TaskStatus> {
        read_task(&self.link, task).await
    }
}

impl System {
    pub async fn task(&self, task: &TaskRef) -> Result<TaskStatus> {
        read_task(&self.link, task).await
    }
}

pub(super) async fn read_task(link: &RedfishClient, task: &TaskRef) -> Result<TaskStatus> {
    let (request, response) = link.get_raw(&task.0).await?;
    match response.status {
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            let message = format!("{} no longer knows of the task {task}", link.endpoint());
            Err(Fault::new(FaultCode::TaskLost, message))
        }
        status if status.is_success() => parse_task(link, task, &response),
        status => failed(link, status, &request, &response),
    }
}

fn parse_task(link: &RedfishClient, task: &TaskRef, response: &HttpResponse) -> Result<TaskStatus> {
    let garbled = |why: String| {
        let message = format!("{} says of the task {task}: {why}", link.endpoint());
        Fault::new(FaultCode::AnswerGarbled, message)
    };
    let body = response.body.as_deref().map_err(|why| garbled(why.clone()))?;
    let value: Value = match body {
        [] => Value::Null,
        body => serde_json::from_slice(body).map_err(|error| garbled(error.to_string()))?,
    };
    let part = JsonNode(&value);
    let state = match part.text("TaskState") {
        Some(name) => TaskState::ALL
            .into_iter()
            .find(|state| state.as_str().eq_ignore_ascii_case(&name))
            .ok_or_else(|| garbled(format!("its state is {name:?}")))?,
        // A monitor answers 202 while the task runs, and then with the response of the task itself.
        None if response.status == StatusCode::ACCEPTED => TaskState::Running,
        None => TaskState::Completed,
    };
    let percent = part.count("PercentComplete").map(|percent| percent.min(100) as u8);
    let mut messages: Vec<String> = part
        .list("Messages")
        .filter_map(|one| one.text("Message"))
        .map(|one| shown(&one))
        .collect();
    let extra = messages.len().saturating_sub(MAX_MESSAGES);
    messages.drain(..extra);
    Ok(TaskStatus { state, percent, messages })
}

/// A monitor passes on the refusal of the finished task; other refusals concern this request.
fn failed(
    link: &RedfishClient,
    status: StatusCode,
    request: &HttpRequest,
    response: &HttpResponse,
) -> Result<TaskStatus> {
    let fault = classification::classify_response(link.endpoint(), request, response);
    let ours = matches!(fault.code, FaultCode::LoginRefused | FaultCode::BmcBusy);
    if ours || !status.is_client_error() {
        return Err(fault);
    }
    Ok(TaskStatus { state: TaskState::Exception, percent: None, messages: vec![fault.message] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_task_is_named_by_itself_or_by_its_monitor() {
        let named = |status: u16, location: Option<&str>, value: Value| {
            let status = StatusCode::from_u16(status).unwrap();
            let location = location.map(str::to_owned);
            TaskRef::named_by(&Accepted { status, location, value }).map(|task| task.0)
        };
        let task = json!({"@odata.id": "/T/1", "@odata.type": "#Task.v1_4_3.Task"});
        let other = json!({"@odata.id": "/U", "@odata.type": "#UpdateService.v1.UpdateService"});
        assert_eq!(named(202, Some("/M/1"), task).as_deref(), Some("/T/1"));
        assert_eq!(named(202, Some("/M/1"), Value::Null).as_deref(), Some("/M/1"));
        assert_eq!(named(202, Some("/M/1"), other.clone()).as_deref(), Some("/M/1"));
        assert_eq!(named(200, Some("/X"), other), None);
        assert_eq!(named(204, None, Value::Null), None);
    }
}
