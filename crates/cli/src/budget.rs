//! Disruption budgets: how many machines may be out of service at once, and what uses them.

use crate::args::{
    BudgetCommand, BudgetCreateArgs, BudgetDeleteArgs, BudgetListArgs, BudgetUpdateArgs,
};
use crate::client::{Client, fetch_pages};
use crate::exit::{Exit, Result};
use crate::filter::empty_list_note;
use crate::output::Screen;
use crate::table::{Cell, ColorMode, Table, Tone, format_pairs};
use crate::text::{one_line, or_dash};
use crate::time::Clock;
use proto::FieldMask;
use proto::v1::{
    Budget, BudgetDomain, CreateBudgetRequest, DeleteBudgetRequest, GetBudgetRequest,
    ListBudgetsRequest, UpdateBudgetRequest,
};

pub async fn run(client: &Client, screen: &mut Screen, command: BudgetCommand) -> Result<Exit> {
    match command {
        BudgetCommand::Create(args) => create(client, screen, args).await?,
        BudgetCommand::List(args) => list(client, screen, &args).await?,
        BudgetCommand::Get(args) => {
            let request = GetBudgetRequest { budget_id: args.budget_id };
            let found = client.call(client.budgets().get_budget(request)).await?;
            screen.print_record(&found, describe)?;
        }
        BudgetCommand::Update(args) => update(client, screen, args).await?,
        BudgetCommand::Delete(args) => {
            let BudgetDeleteArgs { budget_id, version } = args;
            let (dry_run, expected_version) = (client.is_dry_run(), version.or_any());
            let request = DeleteBudgetRequest { budget_id, dry_run, expected_version };
            let gone = client.call(client.budgets().delete_budget(request)).await?;
            screen.print_record(&gone, |gone| format_change(gone, dry_run, "deleted"))?;
        }
    }
    Ok(Exit::Success)
}

/// The change of a budget, done or (in a dry run) planned.
fn format_change(one: &Budget, dry_run: bool, what: &str) -> String {
    let how = if dry_run { "would be" } else { "is" };
    format!("budget {} {how} {what}\n", one_line(&one.budget_id))
}

async fn create(client: &Client, screen: &mut Screen, args: BudgetCreateArgs) -> Result<()> {
    let BudgetCreateArgs { budget_id, filter, max_unavailable, per } = args;
    let budget = Budget { budget_id, filter, max_unavailable, per, ..Default::default() };
    let dry_run = client.is_dry_run();
    let request = CreateBudgetRequest { budget: Some(budget), dry_run };
    let made = client.call(client.budgets().create_budget(request)).await?;
    screen.print_record(&made, |made| {
        format!("{}\n{}", format_change(made, dry_run, "created"), describe(made))
    })
}

async fn update(client: &Client, screen: &mut Screen, args: BudgetUpdateArgs) -> Result<()> {
    let BudgetUpdateArgs { budget_id, filter, max_unavailable, per, version } = args;
    let given = [
        ("filter", filter.is_some()),
        ("max_unavailable", max_unavailable.is_some()),
        ("per", per.is_some()),
    ];
    let paths = given.iter().filter(|(_, given)| *given).map(|(name, _)| name.to_string());
    let dry_run = client.is_dry_run();
    let request = UpdateBudgetRequest {
        update_mask: Some(FieldMask { paths: paths.collect() }),
        budget: Some(Budget {
            budget_id,
            filter: filter.unwrap_or_default(),
            max_unavailable: max_unavailable.unwrap_or_default(),
            per: per.unwrap_or_default(),
            ..Default::default()
        }),
        expected_version: version.or_any(),
        dry_run,
    };
    let done = client.call(client.budgets().update_budget(request)).await?;
    screen.print_record(&done, |done| {
        format!("{}\n{}", format_change(done, dry_run, "changed"), describe(done))
    })
}

async fn list(client: &Client, screen: &mut Screen, args: &BudgetListArgs) -> Result<()> {
    let filter = &args.list.filter;
    let found = fetch_pages(args.list.limit, async |page_size, page_token| {
        let request = ListBudgetsRequest { page_size, page_token, filter: filter.clone() };
        let page = client.call(client.budgets().list_budgets(request)).await?;
        Ok((page.budgets, page.next_page_token))
    })
    .await?;
    let none = "no budgets; make one with `farrier budget create`";
    screen.print_list(&found, table, empty_list_note(filter, none))
}

fn table(all: &[Budget], wide: bool) -> Table {
    let clock = Clock::system();
    let names = [
        "BUDGET_ID",
        "MAX",
        "PER",
        "DOMAINS",
        "FULLEST",
        "UNAVAILABLE",
        "ALLOWED",
        "TOTAL",
        "FILTER",
    ];
    let more = ["VERSION", "UPDATED"];
    let mut table =
        Table::new(&if wide { [&names[..], &more[..]].concat() } else { names.to_vec() });
    for one in all {
        let fullest = one.domains.first().cloned().unwrap_or_default();
        let mut row: Vec<Cell> = vec![
            (&one.budget_id).into(),
            (&one.max_unavailable).into(),
            or_dash(&one.per).into(),
            one.domain_count.to_string().into(),
            or_dash(&fullest.domain).into(),
            used(&fullest),
            fullest.allowed.to_string().into(),
            fullest.total.to_string().into(),
            or_dash(&one.filter).into(),
        ];
        if wide {
            row.push(one.version.to_string().into());
            row.push(clock.ago(one.updated_at.as_ref()).into());
        }
        table.add_row(row);
    }
    table
}

/// The number of unavailable machines, marked when nothing is left.
fn used(domain: &BudgetDomain) -> Cell {
    let tone = match domain.unavailable {
        0 => Tone::Dim,
        used if used >= domain.allowed => Tone::Bad,
        _ => Tone::Good,
    };
    Cell::with_tone(domain.unavailable.to_string(), tone)
}

fn describe(one: &Budget) -> String {
    let clock = Clock::system();
    let mut facts = vec![
        ("Budget:", one.budget_id.clone()),
        ("Filter:", if one.filter.is_empty() { "all machines".into() } else { one.filter.clone() }),
        ("MaxUnavailable:", one.max_unavailable.clone()),
        ("Per:", one.per.clone()),
        ("Created:", clock.ago(one.created_at.as_ref())),
        ("Updated:", clock.ago(one.updated_at.as_ref())),
        ("Version:", one.version.to_string()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut text = format_pairs(&facts);
    if one.domains.is_empty() {
        text.push_str("\nno machine counts in it now\n");
        return text;
    }
    let plain = ColorMode { enabled: false };
    let mut domains = Table::new(&["DOMAIN", "TOTAL", "ALLOWED", "UNAVAILABLE", "LEFT"]);
    let mut machines = Table::new(&["DOMAIN", "MACHINE", "UNAVAILABLE BECAUSE"]);
    for domain in &one.domains {
        let left = (domain.allowed - domain.unavailable).max(0);
        domains.add_row(vec![
            or_dash(&domain.domain).into(),
            domain.total.to_string().into(),
            domain.allowed.to_string().into(),
            domain.unavailable.to_string().into(),
            left.to_string().into(),
        ]);
        for machine in &domain.machines {
            machines.add_row(vec![
                or_dash(&domain.domain).into(),
                (&machine.machine_id).into(),
                (&machine.reason).into(),
            ]);
        }
    }
    text.push_str(&format!("\n{}", domains.render(plain)));
    let hidden = usize::try_from(one.domain_count).unwrap_or_default();
    if let Some(more @ 1..) = hidden.checked_sub(one.domains.len()) {
        text.push_str(&format!("and {more} more domains\n"));
    }
    if one.domains.iter().any(|domain| !domain.machines.is_empty()) {
        text.push_str(&format!("\n{}", machines.render(plain)));
    }
    let unavailable: i64 = one.domains.iter().map(|domain| domain.unavailable).sum();
    let named: usize = one.domains.iter().map(|domain| domain.machines.len()).sum();
    if let Some(more @ 1..) =
        usize::try_from(unavailable).ok().and_then(|all| all.checked_sub(named))
    {
        text.push_str(&format!("and {more} more machines\n"));
    }
    text
}
