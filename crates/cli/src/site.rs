//! Sites: one MAAS each, and the settings of the nodes behind it.

use crate::args::{SiteCommand, SiteCreateArgs, SiteListArgs, SiteSpecArgs, SiteUpdateArgs};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Failure, Result};
use crate::filter::empty_list_note;
use crate::output::Screen;
use crate::table::{Cell, Table, Tone, format_pairs};
use crate::text::{join_pairs, one_line};
use crate::time::Clock;
use crate::update::{Updated, WRITABLE, changes};
use proto::field_mask::differences;
use proto::v1::{
    CheckSiteRequest, CreateSiteRequest, DeleteSiteRequest, GetSiteRequest, ListSitesRequest, Site,
    SiteCommissioning, SiteNetwork, SiteSpec, SiteState, SiteStatus, UpdateSiteRequest,
};
use proto::words::WireEnum;
use std::path::Path;

pub async fn run(client: &Client, screen: &mut Screen, command: SiteCommand) -> Result<Exit> {
    match command {
        SiteCommand::Create(args) => {
            let SiteCreateArgs { site_id, spec } = *args;
            let mut site = Site { site_id, ..Site::default() };
            apply_spec(&mut site, spec)?;
            let request = CreateSiteRequest { site: Some(site), dry_run: client.is_dry_run() };
            let created = client.call(client.sites().create_site(request)).await?;
            screen.print_record(&created, |site| format_change(client, site, "created"))?;
        }
        SiteCommand::Update(args) => {
            let updated = update_site(client, *args).await?;
            screen.print_record(&updated.object, |site| {
                match updated.is_changed() && !client.is_dry_run() {
                    true => format_change(client, site, "updated"),
                    false => format!("{}\n", updated.describe(client, &site.site_id)),
                }
            })?;
        }
        SiteCommand::List(args) => list(client, screen, &args).await?,
        SiteCommand::Get(args) => {
            let site = fetch(client, args.site_id).await?;
            screen.print_record(&site, |site| describe(site, &Clock::system()))?;
        }
        SiteCommand::Check(args) => {
            let request = CheckSiteRequest { site_id: args.site_id };
            let site = client.call_hardware(client.sites().check_site(request)).await?;
            screen.print_record(&site, format_check)?;
            return Ok(if alarms(&site).is_empty() { Exit::Success } else { Exit::Unsuccessful });
        }
        SiteCommand::Delete(args) => {
            let expected_version = args.version.or_any();
            let request = DeleteSiteRequest {
                site_id: args.site_id,
                expected_version,
                dry_run: client.is_dry_run(),
            };
            let gone = client.call(client.sites().delete_site(request)).await?;
            screen.print_record(&gone, |gone| {
                format!("{} {}\n", one_line(&gone.site_id), client.outcome("deleted"))
            })?;
        }
    }
    Ok(Exit::Success)
}

async fn fetch(client: &Client, site_id: String) -> Result<Site> {
    client.call(client.sites().get_site(GetSiteRequest { site_id })).await
}

/// Sends only what the arguments change.
async fn update_site(client: &Client, args: SiteUpdateArgs) -> Result<Updated<Site>> {
    let before = fetch(client, args.site_id).await?;
    let mut site = before.clone();
    apply_spec(&mut site, args.spec)?;
    if args.default_cloud_init {
        site.spec.get_or_insert_default().cloud_init.clear();
    }
    for key in &args.remove_labels {
        site.labels.remove(key);
    }
    let differences = differences(&before, &site, WRITABLE);
    let update_mask = changes(&before, &site, WRITABLE, args.version);
    if update_mask.is_none() {
        return Ok(Updated { object: before, differences });
    }
    let request = UpdateSiteRequest {
        site: Some(site),
        expected_version: args.version.or_any(),
        update_mask,
        dry_run: client.is_dry_run(),
    };
    let object = client.call(client.sites().update_site(request)).await?;
    Ok(Updated { object, differences })
}

/// Empties a list.
const EMPTY: &str = "-";

/// Overwrites the settings that are given.
fn apply_spec(site: &mut Site, given: SiteSpecArgs) -> Result<()> {
    let spec = site.spec.get_or_insert_default();
    let network = spec.network.get_or_insert_default();
    let texts = [
        (&mut spec.maas_url, given.maas_url),
        (&mut spec.maas_credential, given.credential),
        (&mut spec.zone, given.zone),
        (&mut spec.pool, given.pool),
        (&mut spec.image, given.image),
        (&mut spec.storage_layout, given.storage_layout),
        (&mut spec.boot_disk_model, given.boot_disk_model),
        (&mut spec.provider, given.provider),
        (&mut spec.erase_method, given.erase_method),
        (&mut spec.hwe_kernel, given.hwe_kernel),
        (&mut network.roce_interfaces, given.roce_interfaces),
        (&mut network.roce_subnet, given.roce_subnet),
        (&mut spec.cloud_init, given.cloud_init.as_deref().map(read_cloud_init).transpose()?),
    ];
    for (field, value) in texts {
        if let Some(value) = value {
            *field = value;
        }
    }
    network.roce_mtu = given.roce_mtu.unwrap_or(network.roce_mtu);
    let commissioning = spec.commissioning.get_or_insert_default();
    commissioning.skip_bmc_config = given.skip_bmc_config.unwrap_or(commissioning.skip_bmc_config);
    for (list, names) in [
        (&mut spec.tags, given.maas_tags),
        (&mut commissioning.scripts, given.commissioning_scripts),
        (&mut commissioning.tests, given.test_scripts),
    ] {
        match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => {}
            [EMPTY] => list.clear(),
            _ => *list = names,
        }
    }
    spec.datasource_retries = given.datasource_retries.or(spec.datasource_retries);
    spec.erase_on_release = given.erase_on_release.or(spec.erase_on_release);
    spec.keep_in_maas = given.keep_in_maas.or(spec.keep_in_maas);
    spec.calls_at_once = given.calls_at_once.or(spec.calls_at_once);
    spec.calls_per_second = given.calls_per_second.or(spec.calls_per_second);
    site.labels.extend(given.labels);
    Ok(())
}

fn read_cloud_init(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::refused(format!("--cloud-init {}: {error}", path.display())))
}

fn format_change(client: &Client, site: &Site, what: &str) -> String {
    let (id, done) = (one_line(&site.site_id), client.outcome(what));
    match client.is_dry_run() {
        true => format!("{id} {done}\n"),
        false => format!("{id} {done}\n\nNext: farrier site check {id}\n"),
    }
}

async fn list(client: &Client, screen: &mut Screen, args: &SiteListArgs) -> Result<()> {
    let sites = fetch_pages(args.list.limit, async |page_size, page_token| {
        let (filter, order_by) = (args.list.filter.clone(), args.sort.order_by.clone());
        let request = ListSitesRequest { page_size, page_token, filter, order_by };
        let page = client.call(client.sites().list_sites(request)).await?;
        Ok((page.sites, page.next_page_token, page.unreadable_rows))
    })
    .await?;
    let clock = Clock::system();
    let none =
        "no sites; create one with `farrier site create site-… --maas-url URL --credential NAME`";
    let none = empty_list_note(&args.list.filter, none);
    screen.print_list(&sites, |sites, wide| table(sites, wide, &clock), none)
}

fn alarms(site: &Site) -> &[String] {
    site.status.as_ref().map_or(&[], |status| &status.alarms)
}

const fn state_tone(state: SiteState) -> Tone {
    match state {
        SiteState::Connected => Tone::Good,
        SiteState::Unreachable => Tone::Bad,
        SiteState::CutOff => Tone::Warn,
        SiteState::New | SiteState::Unspecified => Tone::Plain,
    }
}

fn machine_count(status: &SiteStatus) -> String {
    status.machines.map(|count| count.to_string()).unwrap_or_default()
}

fn table(sites: &[Site], wide: bool, clock: &Clock) -> Table {
    let names = ["SITE", "STATE", "SINCE", "MACHINES", "MAAS", "ALARMS"];
    let more = ["PROVIDER", "IMAGE", "ZONE", "POOL", "LABELS", "VERSION"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for site in sites {
        let spec = site.spec.clone().unwrap_or_default();
        let status = site.status.clone().unwrap_or_default();
        let mut row: Vec<Cell> = vec![
            (&site.site_id).into(),
            Cell::with_tone(status.state().word(), state_tone(status.state())),
            clock.ago(status.since.as_ref()).into(),
            machine_count(&status).into(),
            spec.maas_url.into(),
            status.alarms.join("; ").into(),
        ];
        if wide {
            row.extend([
                spec.provider.into(),
                spec.image.into(),
                spec.zone.into(),
                spec.pool.into(),
                join_pairs(&site.labels, ",").into(),
                site.version.to_string().into(),
            ]);
        }
        table.add_row(row);
    }
    table
}

/// The result of a check.
fn format_check(site: &Site) -> String {
    let id = one_line(&site.site_id);
    let status = site.status.clone().unwrap_or_default();
    let mut text = format!("{id} is {}", status.state().word());
    if let Some(count) = status.machines {
        text.push_str(&format!("; its MAAS has {count} machines"));
    }
    text.push('\n');
    for alarm in &status.alarms {
        text.push_str(&format!("  {}\n", one_line(alarm)));
    }
    if !status.alarms.is_empty() {
        text.push_str(&format!("\nNext: farrier why {id}\n"));
    }
    text
}

/// Formats all details of one site.
fn describe(site: &Site, clock: &Clock) -> String {
    let spec = site.spec.clone().unwrap_or_default();
    let status = site.status.clone().unwrap_or_default();
    let SiteNetwork { roce_interfaces, roce_mtu, roce_subnet } =
        spec.network.clone().unwrap_or_default();
    let SiteCommissioning { skip_bmc_config, scripts, tests } =
        spec.commissioning.clone().unwrap_or_default();
    let since = clock.ago(status.since.as_ref());
    let mut facts = vec![
        ("Site:", site.site_id.clone()),
        ("State:", format!("{}, since {since}", status.state().word())),
    ];
    facts.extend(status.alarms.iter().map(|alarm| ("Alarm:", alarm.clone())));
    let mtu = if roce_mtu == 0 { String::new() } else { roce_mtu.to_string() };
    facts.extend([
        ("Machines:", machine_count(&status)),
        ("Provider:", spec.provider.clone()),
        ("MAAS:", spec.maas_url.clone()),
        ("Credential:", spec.maas_credential.clone()),
        ("Zone:", spec.zone.clone()),
        ("Pool:", spec.pool.clone()),
        ("Image:", spec.image.clone()),
        ("Storage layout:", spec.storage_layout.clone()),
        ("Boot disk:", boot_disk(&spec.boot_disk_model)),
        ("RoCE interfaces:", roce_interfaces),
        ("RoCE MTU:", mtu),
        ("RoCE subnet:", roce_subnet),
        ("Cloud-init:", cloud_init(&spec)),
        ("Datasource retries:", optional_text(spec.datasource_retries)),
        ("Erase on release:", optional_text(spec.erase_on_release)),
        ("Erase method:", spec.erase_method.clone()),
        ("Kernel:", spec.hwe_kernel.clone()),
        ("MAAS tags:", spec.tags.join(", ")),
        ("Skip BMC config:", if skip_bmc_config { "true".into() } else { String::new() }),
        ("Commissioning:", scripts.join(", ")),
        ("Tests:", tests.join(", ")),
        ("Keep in MAAS:", optional_text(spec.keep_in_maas)),
        ("Calls at once:", optional_text(spec.calls_at_once)),
        ("Calls per second:", optional_text(spec.calls_per_second)),
        ("Labels:", join_pairs(&site.labels, ",")),
        ("Version:", site.version.to_string()),
    ]);
    facts.retain(|(_, value)| !value.is_empty());
    format_pairs(&facts)
}

fn optional_text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn boot_disk(model: &str) -> String {
    match model {
        "" | "-" => "as MAAS chooses".into(),
        model => format!("the one with {model} in its model"),
    }
}

fn cloud_init(spec: &SiteSpec) -> String {
    match spec.cloud_init.len() {
        0 => "the one that comes with Farrier".into(),
        bytes => format!("its own, {bytes} bytes (-o json shows it)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ColorMode;
    use proto::Timestamp;

    fn site() -> Site {
        Site {
            site_id: "site-a".into(),
            spec: Some(SiteSpec {
                provider: "maas".into(),
                maas_url: "http://m:5240/MAAS".into(),
                maas_credential: "maas-a".into(),
                image: "ubuntu/jammy".into(),
                boot_disk_model: "BOSS".into(),
                datasource_retries: Some(2),
                erase_on_release: Some(true),
                ..SiteSpec::default()
            }),
            status: Some(SiteStatus {
                state: SiteState::CutOff.into(),
                since: Some(Timestamp { seconds: 40, nanos: 0 }),
                alarms: vec!["6 of 8 nodes are silent at once".into()],
                machines: Some(8),
            }),
            version: 3,
            ..Site::default()
        }
    }

    #[test]
    fn only_what_is_given_is_laid_over() {
        let mut changed = site();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.yaml");
        std::fs::write(&file, "#cloud-config\n").unwrap();
        let given = SiteSpecArgs {
            image: Some("ubuntu/noble".into()),
            roce_mtu: Some(9_000),
            erase_on_release: Some(false),
            keep_in_maas: Some(true),
            cloud_init: Some(file.clone()),
            hwe_kernel: Some("hwe-22.04".into()),
            maas_tags: vec!["h100".into(), "lab".into()],
            test_scripts: vec!["none".into()],
            labels: vec![("env".into(), "lab".into())],
            ..SiteSpecArgs::default()
        };
        apply_spec(&mut changed, given).unwrap();
        let mut expected = site();
        expected.labels.insert("env".into(), "lab".into());
        let spec = expected.spec.as_mut().unwrap();
        spec.image = "ubuntu/noble".into();
        spec.erase_on_release = Some(false);
        spec.keep_in_maas = Some(true);
        spec.cloud_init = "#cloud-config\n".into();
        spec.network = Some(SiteNetwork { roce_mtu: 9_000, ..SiteNetwork::default() });
        spec.hwe_kernel = "hwe-22.04".into();
        spec.tags = vec!["h100".into(), "lab".into()];
        let tests = vec!["none".into()];
        spec.commissioning = Some(SiteCommissioning { tests, ..SiteCommissioning::default() });
        assert_eq!(changed, expected);
        let empty = SiteSpecArgs { maas_tags: vec!["-".into()], ..SiteSpecArgs::default() };
        apply_spec(&mut changed, empty).unwrap();
        assert!(changed.spec.as_ref().unwrap().tags.is_empty());
        std::fs::remove_file(&file).unwrap();
        let gone = SiteSpecArgs { cloud_init: Some(file), ..SiteSpecArgs::default() };
        let refused = apply_spec(&mut changed, gone).unwrap_err();
        assert!(refused.message.starts_with("--cloud-init "), "{}", refused.message);
        assert_eq!(refused.exit, Exit::Refused);
    }

    #[test]
    fn a_site_in_a_list_and_in_full() {
        let clock = Clock::fixed(100);
        assert_eq!(
            table(&[site()], false, &clock).render(ColorMode { enabled: false }),
            "\
SITE    STATE   SINCE      MACHINES  MAAS                ALARMS
site-a  CutOff  1m 0s ago  8         http://m:5240/MAAS  6 of 8 nodes are silent at once
"
        );
        assert_eq!(
            describe(&site(), &clock),
            "\
Site:                site-a
State:               CutOff, since 1m 0s ago
Alarm:               6 of 8 nodes are silent at once
Machines:            8
Provider:            maas
MAAS:                http://m:5240/MAAS
Credential:          maas-a
Image:               ubuntu/jammy
Boot disk:           the one with BOSS in its model
Cloud-init:          the one that comes with Farrier
Datasource retries:  2
Erase on release:    true
Version:             3
"
        );
    }

    #[test]
    fn a_check_says_what_is_wrong_and_where_to_go_on() {
        assert_eq!(
            format_check(&site()),
            "site-a is CutOff; its MAAS has 8 machines\n  6 of 8 nodes are silent at once\n\n\
             Next: farrier why site-a\n"
        );
        let mut well = site();
        well.status = Some(SiteStatus {
            state: SiteState::Connected.into(),
            machines: Some(0),
            ..Default::default()
        });
        assert_eq!(format_check(&well), "site-a is Connected; its MAAS has 0 machines\n");
    }
}
