//! SimulatorService: fault rules, and counters of every requested effect.

use super::convert::word_from;
use super::page::{List, Page};
use super::status::{OrStatus, refusal_status};
use super::{Answer, Call, GrpcServices};
use model::fault::FaultCode;
use model::filter::{Filter, FilterSubject};
use model::refusal::Refusal;
use model::target::{TargetId, TargetKind};
use model::text;
use proto::{v1, words};
use providers::sim::{FaultRule, Sim};
use tonic::{Request, Response, Status};

const FAULT_MACHINE: &str = "fault.machine";

#[tonic::async_trait]
impl v1::simulator_service_server::SimulatorService for GrpcServices {
    async fn create_fault(&self, request: Request<v1::CreateFaultRequest>) -> Answer<v1::SimFault> {
        let call = self.call(&request).await?;
        let requested = request.into_inner().fault;
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("fault")))?;
        let rule = rule_from(requested).or_status()?;
        let simulator = call.simulator()?;
        call.check_fault_machine(&rule.machine).await?;
        let added = simulator.add_fault(rule).or_status()?;
        Ok(Response::new(fault(added)))
    }

    async fn list_faults(
        &self,
        request: Request<v1::ListFaultsRequest>,
    ) -> Answer<v1::ListFaultsResponse> {
        let call = self.call(&request).await?;
        let v1::ListFaultsRequest { page_size, page_token, filter: stamp } = request.into_inner();
        let filter = Filter::parse(&stamp, FilterSubject::SimFault).or_status()?;
        let page = Page::new(List::SimFaults, &stamp, page_size, &page_token).or_status()?;
        let found =
            call.simulator()?.fault_page(&filter, page.after(), page.limit()).or_status()?;
        let (found, next_page_token) = page.split_page(found, |one| &one.id);
        let faults = found.into_iter().map(fault).collect();
        Ok(Response::new(v1::ListFaultsResponse { faults, next_page_token }))
    }

    async fn delete_faults(
        &self,
        request: Request<v1::DeleteFaultsRequest>,
    ) -> Answer<v1::DeleteFaultsResponse> {
        let call = self.call(&request).await?;
        let id = request.into_inner().fault_id;
        let which = (!id.is_empty()).then_some(id.as_str());
        let deleted = call.simulator()?.clear_faults(which).or_status()?;
        if deleted == 0
            && let Some(id) = which
        {
            return Err(refusal_status(Refusal::not_found(
                "fault rule",
                id,
                "farrier sim fault list",
            )));
        }
        Ok(Response::new(v1::DeleteFaultsResponse { deleted: saturate(deleted) }))
    }

    async fn list_effects(
        &self,
        request: Request<v1::ListEffectsRequest>,
    ) -> Answer<v1::ListEffectsResponse> {
        let call = self.call(&request).await?;
        let v1::ListEffectsRequest { page_size, page_token, filter: stamp } = request.into_inner();
        let filter = Filter::parse(&stamp, FilterSubject::SimEffect).or_status()?;
        let page = Page::new(List::SimEffects, &stamp, page_size, &page_token).or_status()?;
        let found =
            call.simulator()?.effect_page(&filter, page.after(), page.limit()).or_status()?;
        let (found, next_page_token) = page.split_page(found, |one| &one.key);
        let effects = found.into_iter().map(|count| v1::SimEffect {
            key: count.key,
            machine: count.machine,
            effect: count.effect,
            requested: saturate(count.requested),
            applied: saturate(count.applied),
        });
        Ok(Response::new(v1::ListEffectsResponse { effects: effects.collect(), next_page_token }))
    }
}

impl Call {
    /// A server without simulated hardware does not offer this service.
    fn simulator(&self) -> Result<&Sim, Status> {
        self.sim.as_ref().ok_or_else(|| Status::unimplemented("no simulated hardware"))
    }

    /// Refuses a rule for one machine or device that is not registered: it would never apply. A
    /// rule with a wildcard may come before its machines.
    async fn check_fault_machine(&self, machine: &str) -> Result<(), Status> {
        if machine.is_empty() || machine.contains('*') {
            return Ok(());
        }
        let target = TargetId::parse_field(machine, FAULT_MACHINE).or_status()?;
        // A rack has no hardware of its own.
        let known = target.kind != TargetKind::Rack
            && self
                .engine
                .store()
                .read(target, |target, tx| Box::pin(tx.target_exists(target)))
                .await
                .or_status()?;
        match known {
            true => Ok(()),
            false => Err(refusal_status(unknown_machine(machine))),
        }
    }
}

fn saturate(count: impl TryInto<i32>) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

fn count(field: &str, value: i32) -> Result<u32, Refusal> {
    u32::try_from(value)
        .map_err(|_| Refusal::invalid(field, format!("is {value}"), "use 0 or a positive number"))
}

/// The simulator refuses more than it can use.
fn percent(field: &str, value: i32) -> Result<u8, Refusal> {
    u8::try_from(value).map_err(|_| Refusal::invalid(field, format!("is {value}"), "use 0 to 99"))
}

/// A fault rule as a client describes it. The simulator assigns its id.
pub(super) fn rule_from(requested: v1::SimFault) -> Result<FaultRule, Refusal> {
    let verb = word_from::<v1::ProviderVerb>("fault.verb", requested.verb)?.unwrap_or_default();
    let action = word_from::<v1::SimAction>("fault.action", requested.action)?.unwrap_or_default();
    let rule = FaultRule::parse(verb, action)?;
    let code = match requested.code.as_str() {
        "" => None,
        name => Some(FaultCode::parse(name).ok_or_else(|| unknown_code(name))?),
    };
    Ok(FaultRule {
        id: String::new(),
        machine: requested.machine,
        effect: requested.effect,
        times: count("fault.times", requested.times)?,
        delay_ms: count("fault.delay_ms", requested.delay_ms)?,
        message: requested.message,
        at_percent: percent("fault.at_percent", requested.at_percent)?,
        code,
        ..rule
    })
}

fn unknown_machine(machine: &str) -> Refusal {
    let problem = format!("is {machine:?}, and no machine, switch or power shelf has this id");
    let instead = format!("name one, or use a pattern such as {machine}*");
    Refusal::invalid(FAULT_MACHINE, problem, instead).next(TargetKind::Machine.list_command())
}

fn unknown_code(name: &str) -> Refusal {
    let shown: String = name.chars().take(text::MAX_SHORT).collect();
    let instead = "use one that docs/reference/faults.md lists";
    Refusal::invalid("fault.code", format!("{shown:?} is no fault code"), instead)
}

fn fault(rule: FaultRule) -> v1::SimFault {
    v1::SimFault {
        fault_id: rule.id,
        machine: rule.machine,
        effect: rule.effect,
        verb: words::value::<v1::ProviderVerb>(rule.verb.as_str()),
        action: words::value::<v1::SimAction>(rule.action.as_str()),
        times: saturate(rule.times),
        delay_ms: saturate(rule.delay_ms),
        message: rule.message,
        struck: saturate(rule.applied_count),
        code: rule.code.map(|code| code.as_str().to_string()).unwrap_or_default(),
        at_percent: rule.at_percent.into(),
    }
}
