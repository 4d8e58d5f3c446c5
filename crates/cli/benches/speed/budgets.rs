//! Measures the cost of disruption budgets: StartRun on machines in service under 50 budgets beside
//! none, on one server. Every machine counts in three of the budgets: two of the whole fleet, one
//! of them by rack, and that of its team. Rounds with and without budgets take turns, and each has
//! the better of its rounds.

use crate::client::{BenchClient, ClientPool};
use crate::fleet::{Channel, Fleet, RunSlots, Setup};
use crate::table::{Report, Row, Target, Unit};
use crate::{Bench, Outcome, Store, Wrong};
use proto::v1;
use proto::v1::budget_service_client::BudgetServiceClient;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const BUDGETS: usize = 50;
const TEAMS: usize = BUDGETS - 2;
/// The machines of one round; none is taken twice.
const PER_ROUND: usize = 96;
const ROUNDS: usize = 4;
const CLIENTS: [usize; 2] = [1, 32];
/// Clients that prepare the fleet.
const PREPARING: usize = 32;
const MOST_TIMES: f64 = 1.2;

pub async fn measure(bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    for clients in CLIENTS {
        // One slot, so that hardly any run works while others are accepted.
        let fleet = Fleet::start(bench, Setup::new(store).run_slots(RunSlots::One)).await?;
        let crew = fleet.client_pool(PREPARING).await?;
        let budgets = BudgetServiceClient::new(fleet.channel().await?);
        let machines: Vec<String> =
            (0..2 * ROUNDS * PER_ROUND).map(|number| format!("b-{number}")).collect();
        spread(&crew, PREPARING, &machines, bring_into_service).await?;
        let (mut without, mut with) = (Duration::MAX, Duration::MAX);
        for round in machines.chunks(2 * PER_ROUND) {
            let (one, other) = round.split_at(PER_ROUND);
            without = without.min(spread(&crew, clients, one, accept).await?);
            create(budgets.clone()).await?;
            with = with.min(spread(&crew, clients, other, accept).await?);
            delete(budgets.clone()).await?;
        }
        let each = |whole: Duration| whole.as_secs_f64() * 1e3 / PER_ROUND as f64;
        let times = with.as_secs_f64() / without.as_secs_f64();
        report.add(
            Row::new("StartRun accepted, 50 budgets beside none", times, Unit::Times)
                .store(store)
                .clients(clients)
                .target(Target::AtMost(MOST_TIMES))
                .note(format!("each: {:.2} ms beside {:.2} ms", each(with), each(without))),
        );
    }
    Ok(())
}

/// Does the work for all machines with this many clients; returns the time for all of them.
async fn spread<F>(
    crew: &ClientPool,
    clients: usize,
    machines: &[String],
    work: impl Fn(BenchClient, String) -> F + Copy + Send + 'static,
) -> Outcome<Duration>
where
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for (number, call) in crew.clients.iter().take(clients).enumerate() {
        let own: Vec<String> = machines.iter().skip(number).step_by(clients).cloned().collect();
        let call = call.clone();
        tasks.push(tokio::spawn(async move {
            for machine in own {
                work(call.clone(), machine).await?;
            }
            Ok::<(), Wrong>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(begun.elapsed())
}

async fn bring_into_service(mut call: BenchClient, id: String) -> Outcome<()> {
    let number: usize = id.trim_start_matches("b-").parse()?;
    let labels = HashMap::from([("team".to_string(), format!("t-{}", number % TEAMS))]);
    let spec = v1::MachineSpec { provider: "sim".into(), ..Default::default() };
    let machine =
        v1::Machine { machine_id: id.clone(), spec: Some(spec), labels, ..Default::default() };
    let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
    call.machines.register_machine(request).await?;
    for kind in ["ENTER_MAINTENANCE", "EXIT_MAINTENANCE"] {
        call.run_to_success(&id, kind, kind).await?;
    }
    Ok(())
}

async fn accept(mut call: BenchClient, id: String) -> Outcome<()> {
    call.start(&id, "REBOOT", "measured").await.map(drop)
}

/// The ids, filters and failure domains of the budgets.
fn budgets() -> impl Iterator<Item = (String, String, &'static str)> {
    let teams = (0..TEAMS).map(|team| (format!("t-{team}"), format!("labels.team=t-{team}"), ""));
    let fleet = [("all", ""), ("racks", "rack")];
    fleet.into_iter().map(|(id, per)| (id.to_string(), String::new(), per)).chain(teams)
}

async fn create(mut call: BudgetServiceClient<Channel>) -> Outcome<()> {
    for (budget_id, filter, per) in budgets() {
        let (max_unavailable, per) = ("100%".into(), per.into());
        let budget = v1::Budget { budget_id, filter, max_unavailable, per, ..Default::default() };
        let request = v1::CreateBudgetRequest { budget: Some(budget), ..Default::default() };
        call.create_budget(request).await?;
    }
    Ok(())
}

async fn delete(mut call: BudgetServiceClient<Channel>) -> Outcome<()> {
    for (budget_id, ..) in budgets() {
        let request = v1::DeleteBudgetRequest { budget_id, ..Default::default() };
        call.delete_budget(request).await?;
    }
    Ok(())
}
