//! Agent scenarios: nodes without MAAS are bootstrapped by hand and decommissioned by their agent.
//!
//! The agent is a script. Like a client, it retries every call until it is answered. Like the real
//! agent, it remembers executed tasks by effect key.

use crate::clients::Client;
use crate::device_fixture::{DeviceAction, run_to_cancel};
use crate::device_scenarios::DeviceScenario;
use crate::node_scenarios::{MACHINE, NodeAction, newest_node, requester};
use crate::test_env::TestEnv;
use engine::Engine;
use engine::node::{Agents, SessionPolicy, TaskReport};
use engine::secret::{Cipher, SecretStore};
use model::id::MachineId;
use model::node::enroll::{EnrollingAgent, EnrollmentRefusal};
use model::node::task::{LEASE, TaskInstruction};
use model::node::{DecommissionMode, NodeState, TaskKind};
use secrecy::ExposeSecret;
use std::collections::{BTreeMap, HashSet};
use std::sync::PoisonError;
use std::time::Duration;
use store::{Result, StoreError};
use tokio::time::sleep;

const SESSION: &str = "session-1";
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The long-poll timeout for tasks.
const WAIT: Duration = Duration::from_secs(30);
/// The time that half of a task takes.
const HALF_TASK: Duration = Duration::from_secs(5);

/// The number of executions by effect key.
pub type AgentExecutions = BTreeMap<String, u32>;

pub fn all() -> Vec<DeviceScenario> {
    let of = |name, before: Vec<NodeAction>, script, commits, node| DeviceScenario {
        name,
        devices: &[MACHINE],
        long: true,
        before: before.into_iter().map(DeviceAction::Node).collect(),
        faults: vec![],
        script: vec![DeviceAction::Node(script)],
        commits,
        // Agent tasks make no provider calls.
        steps: &[],
        node: Some(node),
    };
    vec![
        of(
            "a node is brought in by hand",
            vec![],
            NodeAction::Bootstrap { falls_silent: false },
            &[("make_node", 1), ("enroll", 1), ("record_heartbeat", 1)],
            "active",
        ),
        of(
            "a node is taken out by its agent",
            vec![NodeAction::Bootstrap { falls_silent: false }],
            NodeAction::Decommission(DecommissionMode::FullDecommission),
            &[("commit", 3), ("insert_task", 3), ("take_task", 3), ("report_task", 3)],
            "deleted",
        ),
        of(
            "an agent falls silent over a drain, which is resumed",
            vec![NodeAction::Bootstrap { falls_silent: true }],
            NodeAction::DecommissionAndResume(DecommissionMode::Drain),
            &[("insert_task", 1), ("take_task", 1), ("resume_node", 3), ("report_task", 1)],
            "retired",
        ),
    ]
}

/// The agent service of an engine.
fn agents(env: &TestEnv, engine: Engine) -> Agents {
    let secrets = SecretStore::new(env.store.clone(), Cipher::new(&[7; 32]), env.clock());
    Agents::new(engine, secrets)
}

/// Bootstraps a node, and starts an agent for it.
pub async fn bootstrap(api_client: &Client, world: &TestEnv, falls_silent: bool) {
    let made = api_client.call(|engine| {
        let agents = agents(world, engine);
        async move { agents.bootstrap(MachineId::trusted(MACHINE), DAY, requester()).await }
    });
    let bundle = match made.await {
        Err(StoreError::Refused(refusal)) => {
            // An earlier call created it, and its token was lost.
            assert_eq!(refusal.reason.as_str(), "NODE_EXISTS");
            let node = newest_node(world).await.expect("a node").id();
            let issued = api_client.call(|engine| {
                let (agents, node) = (agents(world, engine), node.clone());
                async move { agents.issue(&node, DAY, SessionPolicy::End, requester()).await }
            });
            issued.await
        }
        made => made,
    };
    let token = bundle.expect("a bundle").token.expose_secret().to_string();
    let agent = Agent { client: api_client.clone(), env: world.clone(), done: HashSet::new() };
    tokio::spawn(agent.run(token, falls_silent));
}

struct Agent {
    client: Client,
    env: TestEnv,
    /// The journal: executed tasks are not executed again.
    done: HashSet<String>,
}

type Answer<T> = std::result::Result<T, EnrollmentRefusal>;

impl Agent {
    /// Runs until its session is unknown.
    async fn run(mut self, token: String, mut falls_silent: bool) {
        let applicant = || EnrollingAgent {
            session: SESSION.into(),
            hostname: "gpu-1".into(),
            ..EnrollingAgent::default()
        };
        let enrolled = self.call(|agents| {
            let token = token.clone();
            async move { agents.enroll(&token, applicant()).await }
        });
        enrolled.await.expect("enrolled");
        loop {
            let heartbeat = self.call(|agents| async move {
                agents.heartbeat(SESSION, String::new()).await.map(|beat| beat.map(drop))
            });
            let taken = match heartbeat.await {
                Ok(()) => self.call(|agents| async move { agents.take(SESSION, WAIT).await }).await,
                Err(denied) => Err(denied),
            };
            let task = match taken {
                Ok(Some(taken)) => taken.task,
                Ok(None) => continue,
                Err(denied) => return assert_eq!(denied, EnrollmentRefusal::SessionUnknown),
            };
            if std::mem::take(&mut falls_silent) {
                // The lease of the task expires meanwhile.
                sleep(LEASE + HALF_TASK).await;
            }
            let key = task.key.as_str();
            if !self.execute_task(key).await {
                continue;
            }
            self.report(key).await;
            if task.kind == TaskKind::Uninstall {
                return;
            }
        }
    }

    /// Returns whether the task was completed; it may be stopped in the middle.
    async fn execute_task(&mut self, key: &str) -> bool {
        if self.done.contains(key) {
            return true;
        }
        sleep(HALF_TASK).await;
        let renewed = self.call(|agents| {
            let key = key.to_string();
            async move { agents.renew(SESSION, &key, "half of it\n".into()).await }
        });
        if !matches!(renewed.await, Ok(TaskInstruction::Continue)) {
            return false;
        }
        sleep(HALF_TASK).await;
        self.done.insert(key.to_string());
        let mut worked = self.env.agent_executions.lock().unwrap_or_else(PoisonError::into_inner);
        *worked.entry(key.to_string()).or_default() += 1;
        true
    }

    async fn report(&self, key: &str) {
        let report =
            TaskReport { key: key.into(), ok: true, message: "done".into(), log: String::new() };
        let reported = self.call(|agents| {
            let report = report.clone();
            async move { agents.report(SESSION, report).await }
        });
        match reported.await {
            // The task was stopped meanwhile, or the session has ended.
            Ok(()) | Err(EnrollmentRefusal::TaskOver | EnrollmentRefusal::SessionUnknown) => {}
            Err(denied) => panic!("the report was denied: {denied:?}"),
        }
    }

    async fn call<T, F>(&self, call: impl Fn(Agents) -> F) -> Answer<T>
    where
        F: Future<Output = Result<Answer<T>>>,
    {
        let env = &self.env;
        let answer = self.client.call(|engine| call(agents(env, engine)));
        answer.await.expect("agent calls are not refused")
    }
}

/// Requests a resume several times during a drain.
pub async fn resume(client: &Client, env: &TestEnv) {
    let mut node = newest_node(env).await.expect("a node");
    // The run may be canceled before the node leaves `Active`.
    while node.state == NodeState::Active && run_to_cancel(env).await.is_some() {
        sleep(Duration::from_secs(1)).await;
        node = newest_node(env).await.expect("a node");
    }
    let node = node.id();
    // While the task is fresh, while it is leased, and just after its lease has expired.
    for pause in [1, 30, 31] {
        sleep(Duration::from_secs(pause)).await;
        let resumed = client.call(|engine| {
            let node = node.clone();
            async move { engine.nodes().resume(&node, requester()).await.map(drop) }
        });
        // A refusal is fine if the run was canceled: nothing was left undone.
        let resumed = resumed.await;
        assert!(matches!(resumed, Ok(()) | Err(StoreError::Refused(_))), "{resumed:?}");
    }
}
