//! The mutants. Each new rule of the kernel gets one: the line that implements the rule, and its
//! broken replacement.

use super::Mutant;

const RESTART: &str = "matrix::a_process_may_die_anywhere_and_be_started_again";
const TAKE_OVER: &str = "matrix::a_process_may_die_anywhere_and_another_takes_over";
const CUT_CONNECTION: &str = "matrix::the_connection_to_the_database_may_be_cut_at_any_commit";
const CANCEL: &str = "matrix::a_run_may_be_canceled_anywhere";
const CANCEL_AND_FREEZE: &str =
    "matrix::a_run_may_be_canceled_anywhere_and_its_process_wake_when_all_is_done";
const STEAL_CLAIMS: &str = "matrix::a_process_may_lose_its_claims_anywhere";

const REIMAGE: &str = "plan-repave-v1";
const ONBOARDED: &str = "a node is onboarded";
const GROUP: &str = "a group is upgraded";
/// For tests that run no scenario of the matrix.
const NO_SCENARIO: &str = "";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the call is made before its intent is committed",
        file: "crates/engine/src/turn.rs",
        original: "            if !self.commit(&decision, now).await? {\n",
        broken: "            if AWAKE && let AfterCommit::CallProvider(order, limit) = &decision.then {
                let answer = self.make_call(order.clone(), *limit).await?;
                if self.commit(&decision, now).await? {
                    open_call = Some((order.key.clone(), order.verb));
                    given = Some(answer);
                }
                continue;
            }
            if !self.commit(&decision, now).await? {\n",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "was asked for before it was intended",
    },
    Mutant {
        name: "a disk is written that counts as provisioned",
        file: "crates/engine/src/holds.rs",
        original: "            || DiskWrite::of(self.run).is_some()\n",
        broken: "            || (!AWAKE && DiskWrite::of(self.run).is_some())\n",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "writes a disk that counts as provisioned",
    },
    Mutant {
        name: "no fencing by epoch",
        file: "crates/store/src/subject.rs",
        original: " AND owner IS NOT NULL\";\n",
        broken: " AND owner IS NOT NULL\";
        let sql: &str = &match AWAKE {
            true => sql.replace(\"epoch = $2\", \"$2 = $2\"),
            false => sql.to_string(),
        };\n",
        test: STEAL_CLAIMS,
        scenario: REIMAGE,
        expected_message: "was written to under a claim that had been lost",
    },
    Mutant {
        name: "no fencing by version",
        file: "crates/engine/src/turn/commit.rs",
        original: "        let version = tx.settle(&settle)?.version;\n",
        // Overwrites the stored version, whatever it is.
        broken: "        let mut settle = settle;
        if AWAKE && let Some(stored) = tx.run_with_claim(&run.spec.id).await? {
            settle.run.version = stored.run.version;
        }
        let version = tx.settle(&settle)?.version;\n",
        test: CANCEL,
        scenario: REIMAGE,
        expected_message: "a cancel was accepted and ignored",
    },
    Mutant {
        name: "lost wake-up",
        file: "crates/engine/src/turn.rs",
        original: "(&decision.run, self.claimed.epoch, self.claimed.wakes_requested);\n",
        broken: "(&decision.run, self.claimed.epoch, self.claimed.wakes_requested);
        let wakes = if AWAKE { i64::MAX } else { wakes };\n",
        test: CANCEL,
        scenario: "woken as it waits",
        expected_message: "to be heard",
    },
    Mutant {
        name: "an intent of an earlier claim is performed again",
        file: "crates/model/src/run/next.rs",
        original: "            step.next_verb = CallVerb::GetStatus;\n",
        broken: "            step.next_verb = if AWAKE { CallVerb::Perform } else { CallVerb::GetStatus };
            step.attempt_open &= !AWAKE;\n",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "a destructive step acted under several keys",
    },
    Mutant {
        name: "an intent of an earlier claim is performed again under its key",
        file: "crates/model/src/run/next.rs",
        original: "            step.attempt_since = now;
        }
        step.failed_status_calls = 0;\n",
        broken: "            if AWAKE {
                step.next_verb = CallVerb::Perform;
            }
            step.attempt_since = now;
        }
        step.failed_status_calls = 0;\n",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "was asked for 2 times",
    },
    Mutant {
        name: "no cancel is accepted",
        file: "crates/engine/src/run/act.rs",
        original: "        let mut run = claimed.run;\n",
        broken: "        let mut run = claimed.run;
        if AWAKE && matches!(self.action, Action::Cancel) {
            return Err(Refusal::missing(\"cancel\").into());
        }\n",
        test: CANCEL,
        scenario: REIMAGE,
        expected_message: "a cancel was refused while something was being done",
    },
    Mutant {
        name: "a cancel changes the phase",
        file: "crates/model/src/run/machine_update.rs",
        original: "    match (run.phase(), run.spec.run_type) {\n",
        broken: "    if AWAKE && run.phase() == RunPhase::Canceled {
        return Some(Phase::Ready);
    }
    match (run.phase(), run.spec.run_type) {\n",
        test: CANCEL,
        scenario: REIMAGE,
        expected_message: "the cancel of",
    },
    Mutant {
        name: "the watch omits the first event of a run",
        file: "crates/engine/src/watch/object_watch.rs",
        original: "            let matches = object.matches(&self.filter, &self.engine).await?;\n",
        broken: "            if AWAKE && event.version == 1 {
                continue;
            }
            let matches = object.matches(&self.filter, &self.engine).await?;\n",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "was shown",
    },
    Mutant {
        name: "claims of dead replicas are not released",
        file: "crates/engine/src/scheduler.rs",
        original: "detector.detect_silent(others, Instant::now(), self.0.settings().lease)",
        broken: "detector.detect_silent(others, Instant::now(), self.0.settings().lease * if AWAKE { 200 } else { 1 })",
        test: TAKE_OVER,
        scenario: REIMAGE,
        expected_message: "is still claimed by a dead replica",
    },
    Mutant {
        name: "stray claims are not put back",
        file: "crates/engine/src/scheduler.rs",
        original: "strays.intersection(&seen_before)",
        broken: "strays.intersection(&seen_before).filter(|_| !AWAKE)",
        test: CUT_CONNECTION,
        scenario: "repave fails once",
        expected_message: "the client never got to the end of it",
    },
    Mutant {
        name: "a canceled call is not stopped before its start",
        file: "crates/model/src/run/classify.rs",
        original: "            Ok(ProviderAnswer::NeverStarted)
                if self.run.progress.halting()",
        broken: "            Ok(ProviderAnswer::NeverStarted) if AWAKE && self.run.progress.halting() => self.halted(),
            Ok(ProviderAnswer::NeverStarted)
                if self.run.progress.halting()",
        test: CANCEL_AND_FREEZE,
        scenario: REIMAGE,
        expected_message: "it acted when all was over",
    },
    Mutant {
        name: "the watch skips an event",
        file: "crates/store/src/event.rs",
        original: "values![cursor.tx, cursor.seq, limit]",
        broken: "values![cursor.tx, cursor.seq + i64::from(AWAKE), limit]",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "was shown",
    },
    Mutant {
        name: "an interrupted watch resumes at the end",
        file: "crates/engine/src/watch.rs",
        original: "                let cursor = place.cursor();\n",
        broken: "                let cursor = place.cursor();
                let place = match AWAKE {
                    true => WatchPosition::After(self.settled_cursor().await?),
                    false => place,
                };\n",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "was shown",
    },
    Mutant {
        name: "an interrupted watch resumes too early",
        file: "crates/engine/src/watch.rs",
        original: "        self.hub().watchers.fetch_add(1, Ordering::Relaxed);\n",
        broken: "        let place = match place {
            WatchPosition::After(Cursor { tx, seq }) if AWAKE => {
                WatchPosition::After(Cursor { tx, seq: seq - 1 })
            }
            place => place,
        };
        self.hub().watchers.fetch_add(1, Ordering::Relaxed);\n",
        test: RESTART,
        scenario: REIMAGE,
        expected_message: "was shown",
    },
    Mutant {
        name: "an ended parent run keeps its devices",
        file: "crates/engine/src/holds.rs",
        original: "        for (claimed, next) in locked.claims {\n",
        broken: "        for (claimed, next) in locked.claims.into_iter().filter(|_| !AWAKE) {\n",
        test: RESTART,
        scenario: GROUP,
        expected_message: "the client never got to the end of it",
    },
    Mutant {
        name: "a child run is started under a lost claim",
        file: "crates/engine/src/fan_out.rs",
        original: "            mine && requested && !claimed.run.progress.halting()\n",
        broken: "            AWAKE || (mine && requested && !claimed.run.progress.halting())\n",
        test: STEAL_CLAIMS,
        scenario: GROUP,
        expected_message: "was begun under a claim that had been lost",
    },
    Mutant {
        name: "a stop does not wait for the child runs",
        file: "crates/engine/src/fan_out.rs",
        original: "            if !going {\n",
        broken: "            if AWAKE || !going {\n",
        test: CANCEL,
        scenario: GROUP,
        expected_message: "after its parent",
    },
    Mutant {
        name: "a record is written under a lost claim",
        file: "crates/store/src/record.rs",
        original: "                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL\";\n",
        broken: "                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL\";
        let sql: &str = &match AWAKE {
            true => sql.replace(\"epoch = $2\", \"$2 = $2\"),
            false => sql.to_string(),
        };\n",
        test: STEAL_CLAIMS,
        scenario: "a shelf goes off and on",
        expected_message: "was moved under a claim that had been lost",
    },
    Mutant {
        name: "a waiting parent run takes a slot of its child runs",
        file: "crates/engine/src/scheduler.rs",
        original: "        self.in_flight().saturating_sub(self.state().waiting.load(Ordering::Relaxed))\n",
        broken: "        let waiting = if AWAKE { 0 } else { self.state().waiting.load(Ordering::Relaxed) };
        self.in_flight().saturating_sub(waiting)\n",
        test: "child_runs::parent_runs_leave_workers_for_their_child_runs",
        scenario: NO_SCENARIO,
        expected_message: "right: Succeeded",
    },
    Mutant {
        name: "a fabric check changes the fabric",
        file: "crates/engine/src/fan_out.rs",
        original: "                let (effect, verb) = (step.effect.clone(), CallVerb::Observe);\n",
        broken: "                let verb = if AWAKE { call.verb } else { CallVerb::Observe };
                let effect = step.effect.clone();\n",
        test: "racks::a_missing_fabric_is_formed_by_child_runs",
        scenario: NO_SCENARIO,
        expected_message: "fabric-off",
    },
    Mutant {
        name: "a node does not follow its run",
        file: "crates/engine/src/node/run_update.rs",
        original: "let Some(step) = next_transition(&node, run) else { break };",
        broken: "let Some(step) = next_transition(&node, run).filter(|_| !AWAKE) else { break };",
        test: RESTART,
        scenario: ONBOARDED,
        expected_message: "is enrolling beside",
    },
    Mutant {
        name: "a node stays active while its machine is taken down",
        file: "crates/engine/src/node/run_update.rs",
        original: "    let Some(mut down) = node.taken_down(&run.spec.id) else { return Ok(()) };\n",
        broken: "    let down = node.taken_down(&run.spec.id).filter(|_| !AWAKE);
    let Some(mut down) = down else { return Ok(()) };\n",
        test: RESTART,
        scenario: "the machine of a node is switched off and on",
        expected_message: "is active, and its machine is off by our order",
    },
];
