//! Conversions that switches and power shelves share.

use super::Call;
use super::convert::{location_from, time};
use super::health::health_summary;
use super::page::{List, Page, scope};
use super::status::OrStatus;
use engine::{DescribedDevice, PlacedSpec};
use model::device::{Device, DeviceReachability};
use model::effect::{DesiredPower, DeviceFacts};
use model::filter::FilterSubject;
use model::lifecycle::{DeviceFailure, DeviceSpec};
use model::machine::Labels;
use model::order::Selection;
use model::placement::{check_height, parse_feeds};
use model::refusal::Refusal;
use model::text;
use proto::{v1, words};
use std::collections::HashMap;
use store::RecordPage;
use tonic::Status;

/// A device as a client describes it. The caller has parsed its id.
pub(super) fn described<D: Device>(
    id: String,
    labels: HashMap<String, String>,
    spec: Option<v1::DeviceSpec>,
) -> Result<DescribedDevice, Refusal> {
    let labels: Labels = labels.into_iter().collect();
    text::check_labels(&format!("{}.labels", D::FIELD), &labels)?;
    let spec = spec.map(spec_from::<D>).transpose()?;
    Ok(DescribedDevice { id, spec, labels })
}

fn spec_from<D: Device>(requested: v1::DeviceSpec) -> Result<PlacedSpec, Refusal> {
    let field = format!("{}.spec", D::FIELD);
    let (rack, slot) = location_from(&field, &requested.rack_id, requested.slot)?;
    let spec = DeviceSpec {
        provider: requested.provider,
        bmc_endpoint: requested.bmc_endpoint,
        bmc_credential: requested.bmc_credential,
        ssh_endpoint: requested.ssh_endpoint,
        ssh_credential: requested.ssh_credential,
        serial: requested.serial,
        height_u: check_height(&field, requested.height_u, slot)?,
        feeds: parse_feeds(&field, D::TARGET, &requested.feeds)?,
    };
    Ok(PlacedSpec { spec: spec.checked(D::FIELD)?, rack, slot })
}

pub(super) fn labels<D: Device>(device: &D) -> HashMap<String, String> {
    device.head().labels.clone().into_iter().collect()
}

pub(super) fn spec<D: Device>(device: &D) -> v1::DeviceSpec {
    let (head, spec) = (device.head(), device.spec().clone());
    v1::DeviceSpec {
        provider: spec.provider,
        bmc_endpoint: spec.bmc_endpoint,
        bmc_credential: spec.bmc_credential,
        ssh_endpoint: spec.ssh_endpoint,
        ssh_credential: spec.ssh_credential,
        serial: spec.serial,
        rack_id: head.rack.as_ref().map(ToString::to_string).unwrap_or_default(),
        slot: head.slot.and_then(|slot| i32::try_from(slot).ok()),
        height_u: spec.height_u.and_then(|height| i32::try_from(height).ok()),
        feeds: spec.feeds.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn status<D: Device>(device: &D) -> v1::DeviceStatus {
    let head = device.head();
    v1::DeviceStatus {
        state: words::value::<v1::DeviceState>(device.state_name()),
        power_change: power_state(device.power_change()).into(),
        since: Some(time(head.since)),
        cause: device.failure().map(device_failure),
        facts: Some(facts(device.facts())),
        observed: device.observed().map(observed),
        active_operation_id: head.active_run.as_ref().map(ToString::to_string).unwrap_or_default(),
        deleted: head.deleted,
        version: head.version,
        created_at: Some(time(head.created_at)),
        updated_at: Some(time(head.updated_at)),
        health: health_summary(&device.target(), &head.health),
        would_follow: Vec::new(),
    }
}

fn device_failure(cause: &DeviceFailure) -> v1::DeviceTrouble {
    v1::DeviceTrouble {
        message: cause.message.clone(),
        operation_id: cause.run.as_ref().map(ToString::to_string).unwrap_or_default(),
        fault: cause.code.clone(),
    }
}

pub(super) const fn power_state(power: Option<DesiredPower>) -> v1::PowerState {
    match power {
        Some(DesiredPower::On) => v1::PowerState::On,
        Some(DesiredPower::Off) => v1::PowerState::Off,
        None => v1::PowerState::Unspecified,
    }
}

fn facts(facts: &DeviceFacts) -> v1::DeviceFacts {
    v1::DeviceFacts {
        manufacturer: facts.manufacturer.clone(),
        model: facts.model.clone(),
        serial: facts.serial.clone(),
        firmware: facts.firmware.clone().into_iter().collect(),
        power: power_state(facts.power).into(),
    }
}

fn observed(observation: &DeviceReachability) -> v1::DeviceObserved {
    v1::DeviceObserved {
        reachable: observation.reachable,
        message: observation.message.clone(),
        at: Some(time(observation.at)),
    }
}

/// A request for a page of devices.
pub(super) struct DevicePageRequest<'a> {
    pub list: List,
    pub subject: FilterSubject,
    pub filter: &'a str,
    pub order_by: &'a str,
    pub size: i32,
    pub token: &'a str,
}

impl Call {
    /// The status of one device, with all its health reports.
    pub(super) async fn device_status<D: Device>(
        &self,
        device: &D,
    ) -> Result<v1::DeviceStatus, Status> {
        let health = self.health_of(&device.target(), &device.head().health).await?;
        Ok(v1::DeviceStatus { health, ..status(device) })
    }

    /// The devices of a page, and the token of the next page.
    pub(super) async fn device_page<D: Device>(
        &self,
        desired: DevicePageRequest<'_>,
    ) -> Result<(RecordPage<D>, String), Status> {
        let selected = Selection::parse(desired.filter, desired.order_by, desired.subject);
        let selected = selected.or_status()?;
        let scope = scope(desired.filter, selected.order);
        let page = Page::new(desired.list, &scope, desired.size, desired.token).or_status()?;
        let size = usize::try_from(page.size).unwrap_or(usize::MAX);
        let found = self.engine.devices().list::<D>(selected, page.from.clone(), size).await;
        let found = found.or_status()?;
        let next = found.next.as_ref().map(|last| page.token(last)).unwrap_or_default();
        Ok((found, next))
    }
}
