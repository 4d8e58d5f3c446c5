//! SiteService: a MAAS, and the configuration of the nodes that it deploys.

use super::convert::{expected_version, time, who};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::update;
use super::{Answer, GrpcServices};
use engine::SiteDescription;
use model::filter::FilterSubject;
use model::id::SiteId;
use model::machine::Labels;
use model::order::Selection;
use model::refusal::Refusal;
use model::site::{Commissioning, EraseMethod, Network, Site, SiteSpec};
use proto::{v1, words};
use tonic::{Request, Response};

/// The wire value of an empty `boot_disk_model` (MAAS chooses), because empty means the default
/// there.
const NO_MODEL: &str = "-";

#[tonic::async_trait]
impl v1::site_service_server::SiteService for GrpcServices {
    async fn create_site(&self, request: Request<v1::CreateSiteRequest>) -> Answer<v1::Site> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::CreateSiteRequest { site: requested, dry_run } = request.into_inner();
        let described = described(requested).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let created = engine.sites().create(described, requester).await.or_status()?;
        Ok(Response::new(site(&created)))
    }

    async fn get_site(&self, request: Request<v1::GetSiteRequest>) -> Answer<v1::Site> {
        let call = self.call(&request).await?;
        let id = SiteId::parse(&request.get_ref().site_id).or_status()?;
        let found = call.engine.sites().get(&id).await.or_status()?;
        Ok(Response::new(site(&found)))
    }

    async fn list_sites(
        &self,
        request: Request<v1::ListSitesRequest>,
    ) -> Answer<v1::ListSitesResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let v1::ListSitesRequest { filter, page_size, page_token, order_by } = requested;
        let selected = Selection::parse(&filter, &order_by, FilterSubject::Site).or_status()?;
        let scope = scope(&filter, selected.order);
        let page = Page::new(List::Sites, &scope, page_size, &page_token).or_status()?;
        let size = usize::try_from(page.size).unwrap_or_default();
        let found =
            call.engine.sites().list(selected, page.from.clone(), size).await.or_status()?;
        let sites = found.records.iter().map(site).collect();
        let next_page_token = found.next.map(|last| page.token(&last)).unwrap_or_default();
        let unreadable_rows = unreadable_rows(&found.unreadable);
        Ok(Response::new(v1::ListSitesResponse { sites, next_page_token, unreadable_rows }))
    }

    async fn update_site(&self, request: Request<v1::UpdateSiteRequest>) -> Answer<v1::Site> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::UpdateSiteRequest {
            site: requested,
            expected_version: version,
            update_mask,
            dry_run,
        } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("site")))?;
        let id = SiteId::parse_field(&requested.site_id, "site.site_id").or_status()?;
        let change = update::change(requested, update_mask, &["labels", "spec"], site, described);
        let version = expected_version(version);
        let engine = call.engine.with_dry_run(dry_run);
        let updated = engine.sites().update(id, change, version, requester).await.or_status()?;
        Ok(Response::new(site(&updated)))
    }

    async fn delete_site(&self, request: Request<v1::DeleteSiteRequest>) -> Answer<v1::Site> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let id = SiteId::parse(&request.get_ref().site_id).or_status()?;
        let version = expected_version(request.get_ref().expected_version);
        let engine = call.engine.with_dry_run(request.get_ref().dry_run);
        let gone = engine.sites().delete(&id, version, requester).await.or_status()?;
        Ok(Response::new(site(&gone)))
    }

    async fn check_site(&self, request: Request<v1::CheckSiteRequest>) -> Answer<v1::Site> {
        let call = self.call(&request).await?;
        let id = SiteId::parse(&request.get_ref().site_id).or_status()?;
        call.engine.nodes().probe_site(&id).await.or_status()?;
        let observed = call.engine.sites().get(&id).await.or_status()?;
        Ok(Response::new(site(&observed)))
    }
}

fn described(requested: Option<v1::Site>) -> Result<SiteDescription, Refusal> {
    let requested = requested.ok_or_else(|| Refusal::missing("site"))?;
    let labels: Labels = requested.labels.into_iter().collect();
    Ok(SiteDescription {
        id: SiteId::parse_field(&requested.site_id, "site.site_id")?,
        spec: spec_from(requested.spec.unwrap_or_default())?,
        labels,
    })
}

/// An empty field means its default; the engine checks the values.
pub(super) fn spec_from(requested: v1::SiteSpec) -> Result<SiteSpec, Refusal> {
    let default = SiteSpec::default();
    let or = |given: String, default: String| if given.is_empty() { default } else { given };
    let network = requested.network.unwrap_or_default();
    let commissioning = requested.commissioning.unwrap_or_default();
    let count = |field: &str, given: Option<i32>, default: u32| match given {
        None => Ok(default),
        Some(count) => number(field, count),
    };
    Ok(SiteSpec {
        provider: or(requested.provider, default.provider),
        maas_url: requested.maas_url,
        maas_credential: requested.maas_credential,
        zone: requested.zone,
        pool: requested.pool,
        image: or(requested.image, default.image),
        storage_layout: or(requested.storage_layout, default.storage_layout),
        boot_disk_model: match requested.boot_disk_model.as_str() {
            NO_MODEL => String::new(),
            _ => or(requested.boot_disk_model, default.boot_disk_model),
        },
        network: Network {
            roce_interfaces: network.roce_interfaces,
            roce_mtu: number("network.roce_mtu", network.roce_mtu)?,
            roce_subnet: network.roce_subnet,
        },
        cloud_init: requested.cloud_init,
        datasource_retries: count(
            "datasource_retries",
            requested.datasource_retries,
            default.datasource_retries,
        )?,
        erase_on_release: requested.erase_on_release.unwrap_or(default.erase_on_release),
        erase_method: EraseMethod::parse_field(&requested.erase_method, "site.spec.erase_method")?,
        hwe_kernel: requested.hwe_kernel,
        tags: requested.tags,
        commissioning: Commissioning {
            skip_bmc_config: commissioning.skip_bmc_config,
            scripts: commissioning.scripts,
            tests: commissioning.tests,
        },
        keep_in_maas: requested.keep_in_maas.unwrap_or(default.keep_in_maas),
        calls_at_once: count("calls_at_once", requested.calls_at_once, default.calls_at_once)?,
        calls_per_second: count(
            "calls_per_second",
            requested.calls_per_second,
            default.calls_per_second,
        )?,
    })
}

fn number(field: &str, given: i32) -> Result<u32, Refusal> {
    u32::try_from(given).map_err(|_| {
        let field = format!("site.spec.{field}");
        Refusal::invalid(&field, format!("is {given}"), "use 0 or more, or leave it out")
    })
}

fn site(site: &Site) -> v1::Site {
    v1::Site {
        site_id: site.head.id.clone(),
        spec: Some(spec(&site.spec)),
        labels: site.head.labels.clone().into_iter().collect(),
        status: Some(v1::SiteStatus {
            state: words::value::<v1::SiteState>(site.state().as_str()),
            since: Some(time(site.head.since)),
            alarms: site.alarms().into_iter().map(|alarm| alarm.message.clone()).collect(),
            machines: site.machines.map(|count| i64::try_from(count).unwrap_or(i64::MAX)),
        }),
        version: site.head.version,
    }
}

/// The inverse of `spec_from`: an update with the result changes nothing.
fn spec(spec: &SiteSpec) -> v1::SiteSpec {
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    v1::SiteSpec {
        provider: spec.provider.clone(),
        maas_url: spec.maas_url.clone(),
        maas_credential: spec.maas_credential.clone(),
        zone: spec.zone.clone(),
        pool: spec.pool.clone(),
        image: spec.image.clone(),
        storage_layout: spec.storage_layout.clone(),
        boot_disk_model: match spec.boot_disk_model.as_str() {
            "" => NO_MODEL.into(),
            model => model.into(),
        },
        network: Some(v1::SiteNetwork {
            roce_interfaces: spec.network.roce_interfaces.clone(),
            roce_mtu: number(spec.network.roce_mtu),
            roce_subnet: spec.network.roce_subnet.clone(),
        }),
        cloud_init: spec.cloud_init.clone(),
        datasource_retries: Some(number(spec.datasource_retries)),
        erase_on_release: Some(spec.erase_on_release),
        erase_method: spec.erase_method.as_str().into(),
        hwe_kernel: spec.hwe_kernel.clone(),
        tags: spec.tags.clone(),
        commissioning: Some(v1::SiteCommissioning {
            skip_bmc_config: spec.commissioning.skip_bmc_config,
            scripts: spec.commissioning.scripts.clone(),
            tests: spec.commissioning.tests.clone(),
        }),
        keep_in_maas: Some(spec.keep_in_maas),
        calls_at_once: Some(number(spec.calls_at_once)),
        calls_per_second: Some(number(spec.calls_per_second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_use_defaults_and_specs_round_trip() {
        assert_eq!(spec_from(v1::SiteSpec::default()).unwrap(), SiteSpec::default());
        let other = SiteSpec {
            boot_disk_model: String::new(),
            network: Network {
                roce_interfaces: "enp".into(),
                roce_mtu: 9_000,
                ..Network::default()
            },
            datasource_retries: 0,
            erase_on_release: false,
            erase_method: EraseMethod::SecureOrQuick,
            hwe_kernel: "hwe-22.04".into(),
            tags: vec!["h100".into()],
            commissioning: Commissioning {
                skip_bmc_config: true,
                scripts: vec!["none".into()],
                tests: vec!["smartctl-validate".into()],
            },
            keep_in_maas: true,
            ..SiteSpec::default()
        };
        for one in [SiteSpec::default(), other] {
            assert_eq!(spec_from(spec(&one)).unwrap(), one);
        }
    }

    #[test]
    fn invalid_specs_are_refused_by_field() {
        let network = Some(v1::SiteNetwork { roce_mtu: -1, ..Default::default() });
        for (requested, field) in [
            (v1::SiteSpec { network, ..Default::default() }, "site.spec.network.roce_mtu"),
            (
                v1::SiteSpec { calls_at_once: Some(-5), ..Default::default() },
                "site.spec.calls_at_once",
            ),
        ] {
            assert_eq!(spec_from(requested).unwrap_err().field.as_deref(), Some(field));
        }
        assert_eq!(described(None).unwrap_err().field.as_deref(), Some("site"));
        let unnamed = Some(v1::Site::default());
        assert_eq!(described(unnamed).unwrap_err().field.as_deref(), Some("site.site_id"));
    }
}
