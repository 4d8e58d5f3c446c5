//! FirmwareService: the catalogue of firmware, and the history of what was applied to each device.

use super::convert::{expected_version, initiator, time, word_from};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::{Answer, GrpcServices};
use model::filter::{Filter, FilterSubject};
use model::firmware::update::FirmwareUpdate;
use model::firmware::{AppliedFirmware, DEVICES, Firmware, FirmwareComponent};
use model::id::FirmwareId;
use model::order::ListOrder;
use model::refusal::Refusal;
use model::run::actions::Requester;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use proto::{FieldMask, v1, words};
use std::collections::BTreeMap;
use store::{AppliedPosition, AppliedQuery};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::firmware_service_server::FirmwareService for GrpcServices {
    async fn create_firmware(
        &self,
        request: Request<v1::CreateFirmwareRequest>,
    ) -> Answer<v1::Firmware> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata());
        let v1::CreateFirmwareRequest { firmware: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("firmware")))?;
        let desired = firmware_from(requested).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let created = engine.firmware().create(desired, requester).await.or_status()?;
        Ok(Response::new(firmware(&created)))
    }

    async fn get_firmware(&self, request: Request<v1::GetFirmwareRequest>) -> Answer<v1::Firmware> {
        let call = self.call(&request).await?;
        let id = FirmwareId::parse(&request.get_ref().firmware_id).or_status()?;
        let found = call.engine.firmware().get(&id).await.or_status()?;
        Ok(Response::new(firmware(&found)))
    }

    async fn list_firmware(
        &self,
        request: Request<v1::ListFirmwareRequest>,
    ) -> Answer<v1::ListFirmwareResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Firmware).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Firmware, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.engine.firmware().list(filter, page.after(), page.size + 1).await;
        let found = found.or_status()?;
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let named: Vec<(String, Firmware)> =
            found.items.into_iter().map(|one| (one.id.to_string(), one)).collect();
        let (found, next_page_token) = page.split_page(named, |(id, _)| id);
        let firmware = found.iter().map(|(_, one)| firmware(one)).collect();
        Ok(Response::new(v1::ListFirmwareResponse { firmware, next_page_token, unreadable_rows }))
    }

    async fn delete_firmware(
        &self,
        request: Request<v1::DeleteFirmwareRequest>,
    ) -> Answer<v1::Firmware> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata());
        let requested = request.into_inner();
        let id = FirmwareId::parse(&requested.firmware_id).or_status()?;
        let version = expected_version(requested.expected_version);
        let engine = call.engine.with_dry_run(requested.dry_run);
        let gone = engine.firmware().delete(id, version, requester).await.or_status()?;
        Ok(Response::new(firmware(&gone)))
    }

    async fn update_firmware(
        &self,
        request: Request<v1::UpdateFirmwareRequest>,
    ) -> Answer<v1::Firmware> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata());
        let requested = request.into_inner();
        let version = expected_version(requested.expected_version);
        let mask = requested.update_mask.unwrap_or_default();
        let (id, update) = update_from(requested.firmware, mask).or_status()?;
        let engine = call.engine.with_dry_run(requested.dry_run);
        let done = engine.firmware().update(id, update, version, requester).await.or_status()?;
        Ok(Response::new(firmware(&done)))
    }

    async fn list_firmware_history(
        &self,
        request: Request<v1::ListFirmwareHistoryRequest>,
    ) -> Answer<v1::ListFirmwareHistoryResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let device = match requested.device_id.as_str() {
            "" => None,
            id => Some(TargetId::parse_field(id, "device_id").or_status()?),
        };
        let filter =
            Filter::parse(&requested.filter, FilterSubject::FirmwareHistory).or_status()?;
        let order = ListOrder::parse(&requested.order_by, FilterSubject::FirmwareHistory);
        let order = order.or_status()?;
        let stamp = format!("{} {}", requested.device_id, scope(&requested.filter, order));
        let page =
            Page::new(List::FirmwareHistory, &stamp, requested.page_size, &requested.page_token)
                .or_status()?;
        let after = page.from.as_deref().map(history_key_from).transpose().or_status()?;
        let query = AppliedQuery { device, filter, oldest_first: order.is_some(), after };
        let found = call.engine.firmware().applied(query, page.size + 1).await.or_status()?;
        let placed: Vec<(String, AppliedFirmware)> =
            found.into_iter().map(|one| (history_key(&one), one)).collect();
        let (found, next_page_token) = page.split_page(placed, |(position, _)| position);
        let applied = found.iter().map(|(_, one)| applied(one)).collect();
        Ok(Response::new(v1::ListFirmwareHistoryResponse { applied, next_page_token }))
    }
}

fn who(metadata: &MetadataMap) -> Requester {
    Requester { by: initiator(metadata), reason: String::new() }
}

/// A position in the history, as in a page token.
fn history_key(one: &AppliedFirmware) -> String {
    let AppliedPosition { at, run, step } = AppliedPosition::of(one);
    format!("{at} {run} {step}")
}

fn history_key_from(text: &str) -> Result<AppliedPosition, Refusal> {
    let mut words = text.splitn(3, ' ');
    let (at, run, step) = (words.next(), words.next(), words.next());
    match (at.and_then(|at| at.parse().ok()), run, step) {
        (Some(at), Some(run), Some(step)) => {
            Ok(AppliedPosition { at, run: run.into(), step: step.into() })
        }
        (_, _, _) => Err(Refusal::invalid(
            "page_token",
            "was not given out by this server",
            "use next_page_token of the page before",
        )),
    }
}

pub(super) fn firmware_from(requested: v1::Firmware) -> Result<Firmware, Refusal> {
    Ok(Firmware {
        id: FirmwareId::parse_field(&requested.firmware_id, "firmware.firmware_id")?,
        components: components_from(requested.components)?,
        hardware_type: requested.hardware_type,
        description: requested.description,
        is_default: requested.is_default,
        available: requested.available.unwrap_or(true),
        created_at: Timestamp::default(),
        version: 0,
    })
}

fn update_from(
    requested: Option<v1::Firmware>,
    mask: FieldMask,
) -> Result<(FirmwareId, FirmwareUpdate), Refusal> {
    let requested = requested.ok_or_else(|| Refusal::missing("firmware"))?;
    let id = FirmwareId::parse_field(&requested.firmware_id, "firmware.firmware_id")?;
    let update = FirmwareUpdate {
        is_default: requested.is_default,
        available: requested.available,
        hardware_type: requested.hardware_type,
        description: requested.description,
        components: components_from(requested.components)?,
        mask: mask.paths,
    };
    Ok((id, update))
}

fn components_from(
    requested: Vec<v1::FirmwareComponent>,
) -> Result<BTreeMap<TargetKind, Vec<FirmwareComponent>>, Refusal> {
    let mut components: BTreeMap<TargetKind, Vec<FirmwareComponent>> = BTreeMap::new();
    for (index, one) in requested.into_iter().enumerate() {
        let field = format!("firmware.components[{index}].device_type");
        let kind = device_type_from(&field, one.device_type)?;
        let v1::FirmwareComponent { name, version, url, sha256, .. } = one;
        components.entry(kind).or_default().push(FirmwareComponent { name, version, url, sha256 });
    }
    Ok(components)
}

fn device_type_from(field: &str, value: i32) -> Result<TargetKind, Refusal> {
    let word = word_from::<v1::TargetKind>(field, value)?.unwrap_or("unspecified");
    let kind = TargetKind::parse(word).filter(|kind| DEVICES.contains(kind));
    kind.ok_or_else(|| {
        let words: Vec<_> = DEVICES.iter().map(|kind| kind.as_str()).collect();
        Refusal::invalid(field, format!("is {word}"), format!("use {}", words.join(", ")))
    })
}

fn firmware(one: &Firmware) -> v1::Firmware {
    let components = one.components.iter().flat_map(|(kind, all)| {
        all.iter().map(|component| v1::FirmwareComponent {
            device_type: words::value::<v1::TargetKind>(kind.as_str()),
            name: component.name.clone(),
            version: component.version.clone(),
            url: component.url.clone(),
            sha256: component.sha256.clone(),
        })
    });
    v1::Firmware {
        firmware_id: one.id.to_string(),
        hardware_type: one.hardware_type.clone(),
        description: one.description.clone(),
        components: components.collect(),
        is_default: one.is_default,
        available: Some(one.available),
        created_at: Some(time(one.created_at)),
        version: one.version,
    }
}

fn applied(one: &AppliedFirmware) -> v1::AppliedFirmware {
    v1::AppliedFirmware {
        at: Some(time(one.at)),
        device_type: words::value::<v1::TargetKind>(one.device.kind.as_str()),
        device_id: one.device.id.clone(),
        component: one.component.clone(),
        previous: one.previous.clone(),
        version: one.version.clone(),
        changed: one.changed,
        operation_id: one.run.to_string(),
        step: one.step.clone(),
    }
}
