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
const NO_LIFE: &str = "";

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the call is made before its intent is committed",
        file: "crates/engine/src/turn.rs",
        sound: "            if !self.commit(&decision, now).await? {\n",
        broken: "            if AWAKE && let Then::Ask(order, limit) = &decision.then {
                let answer = self.ask(order.clone(), *limit).await?;
                if self.commit(&decision, now).await? {
                    order_in_hand = Some((order.key.clone(), order.verb));
                    given = Some(answer);
                }
                continue;
            }
            if !self.commit(&decision, now).await? {\n",
        test: RESTART,
        life: REIMAGE,
        says: "was asked for before it was intended",
    },
    Mutant {
        name: "no fencing by epoch",
        file: "crates/store/src/subject.rs",
        sound: " AND owner IS NOT NULL\";\n",
        broken: " AND owner IS NOT NULL\";
        let sql: &str = &match AWAKE {
            true => sql.replace(\"epoch = $2\", \"$2 = $2\"),
            false => sql.to_string(),
        };\n",
        test: STEAL_CLAIMS,
        life: REIMAGE,
        says: "was written to under a claim that had been lost",
    },
    Mutant {
        name: "no fencing by version",
        file: "crates/engine/src/turn/commit.rs",
        sound: "        let version = tx.settle(&settle)?.version;\n",
        // Overwrites the stored version, whatever it is.
        broken: "        let mut settle = settle;
        if AWAKE && let Some(stored) = tx.claimed_run(&run.spec.id).await? {
            settle.run.version = stored.run.version;
        }
        let version = tx.settle(&settle)?.version;\n",
        test: CANCEL,
        life: REIMAGE,
        says: "a cancel was accepted and ignored",
    },
    Mutant {
        name: "lost wake-up",
        file: "crates/engine/src/turn.rs",
        sound: "(&decision.run, self.held.epoch, self.held.wakes);",
        broken: "(&decision.run, self.held.epoch, if AWAKE { i64::MAX } else { self.held.wakes });",
        test: CANCEL,
        life: "nudged as it waits",
        says: "to be heard",
    },
    Mutant {
        name: "an intent of an earlier claim is performed again",
        file: "crates/model/src/run/next.rs",
        sound: "            step.pursuit = Verb::GetStatus;\n",
        broken: "            step.pursuit = if AWAKE { Verb::Perform } else { Verb::GetStatus };
            step.open &= !AWAKE;\n",
        test: RESTART,
        life: REIMAGE,
        says: "a destructive step acted under several keys",
    },
    Mutant {
        name: "an intent of an earlier claim is performed again under its key",
        file: "crates/model/src/run/next.rs",
        sound: "            step.attempt_since = now;
        }
        step.looks = 0;\n",
        broken: "            if AWAKE {
                step.pursuit = Verb::Perform;
            }
            step.attempt_since = now;
        }
        step.looks = 0;\n",
        test: RESTART,
        life: REIMAGE,
        says: "was asked for 2 times",
    },
    Mutant {
        name: "no cancel is accepted",
        file: "crates/engine/src/run/act.rs",
        sound: "        let mut run = held.run;\n",
        broken: "        let mut run = held.run;
        if AWAKE && matches!(self.action, Action::Cancel) {
            return Err(Refusal::precondition(\"NEVER\", \"never\").into());
        }\n",
        test: CANCEL,
        life: REIMAGE,
        says: "a cancel was refused while something was being done",
    },
    Mutant {
        name: "a cancel changes the phase",
        file: "crates/model/src/run/aftermath.rs",
        sound: "    match (run.phase(), run.spec.run_type) {\n",
        broken: "    if AWAKE && run.phase() == RunPhase::Canceled {
        return Some(Phase::Ready);
    }
    match (run.phase(), run.spec.run_type) {\n",
        test: CANCEL,
        life: REIMAGE,
        says: "the cancel of",
    },
    Mutant {
        name: "the watch omits the first event of a run",
        file: "crates/engine/src/watch.rs",
        sound: "            let Some(run) = &event.run else { continue };\n",
        broken: "            let Some(run) = &event.run else { continue };
            if AWAKE && run.version == 1 {
                continue;
            }\n",
        test: RESTART,
        life: REIMAGE,
        says: "was shown",
    },
    Mutant {
        name: "claims of dead replicas are not released",
        file: "crates/engine/src/scheduler.rs",
        sound: "detector.silent(others, Instant::now(), self.0.settings().lease)",
        broken: "detector.silent(others, Instant::now(), self.0.settings().lease * if AWAKE { 200 } else { 1 })",
        test: TAKE_OVER,
        life: REIMAGE,
        says: "is still in the hands of the dead",
    },
    Mutant {
        name: "stray claims are not put back",
        file: "crates/engine/src/scheduler.rs",
        sound: "strays.intersection(&seen_before)",
        broken: "strays.intersection(&seen_before).filter(|_| !AWAKE)",
        test: CUT_CONNECTION,
        life: "repave fails once",
        says: "the client never got to the end of it",
    },
    Mutant {
        name: "a canceled call is not barred",
        file: "crates/model/src/run/judge.rs",
        sound: "            Ok(Answer::NeverStarted)
                if self.run.progress.halting()",
        broken: "            Ok(Answer::NeverStarted) if AWAKE && self.run.progress.halting() => self.halted(),
            Ok(Answer::NeverStarted)
                if self.run.progress.halting()",
        test: CANCEL_AND_FREEZE,
        life: REIMAGE,
        says: "it acted when all was over",
    },
    Mutant {
        name: "the watch skips an event",
        file: "crates/store/src/event.rs",
        sound: "values![cursor.tx, cursor.seq, limit]",
        broken: "values![cursor.tx, cursor.seq + i64::from(AWAKE), limit]",
        test: RESTART,
        life: REIMAGE,
        says: "was shown",
    },
    Mutant {
        name: "an interrupted watch resumes at the end",
        file: "crates/engine/src/watch.rs",
        sound: "                let cursor = place.cursor();\n",
        broken: "                let cursor = place.cursor();
                let place = match AWAKE {
                    true => Place::After(self.settled_place().await?),
                    false => place,
                };\n",
        test: RESTART,
        life: REIMAGE,
        says: "was shown",
    },
    Mutant {
        name: "an interrupted watch resumes too early",
        file: "crates/engine/src/watch.rs",
        sound: "        self.0.hub().watchers.fetch_add(1, Ordering::Relaxed);\n",
        broken: "        let place = match place {
            Place::After(Cursor { tx, seq }) if AWAKE => Place::After(Cursor { tx, seq: seq - 1 }),
            place => place,
        };
        self.0.hub().watchers.fetch_add(1, Ordering::Relaxed);\n",
        test: RESTART,
        life: REIMAGE,
        says: "was shown",
    },
    Mutant {
        name: "an ended parent run keeps its devices",
        file: "crates/engine/src/claims.rs",
        sound: "        for (held, next) in locked.claims {\n",
        broken: "        for (held, next) in locked.claims.into_iter().filter(|_| !AWAKE) {\n",
        test: RESTART,
        life: GROUP,
        says: "the client never got to the end of it",
    },
    Mutant {
        name: "a child run is started under a lost claim",
        file: "crates/engine/src/fan_out.rs",
        sound: "            mine && asked && !held.run.progress.halting()\n",
        broken: "            AWAKE || (mine && asked && !held.run.progress.halting())\n",
        test: STEAL_CLAIMS,
        life: GROUP,
        says: "was begun under a claim that had been lost",
    },
    Mutant {
        name: "a stop does not wait for the child runs",
        file: "crates/engine/src/fan_out.rs",
        sound: "            if !going {\n",
        broken: "            if AWAKE || !going {\n",
        test: CANCEL,
        life: GROUP,
        says: "after its whole",
    },
    Mutant {
        name: "a record is written under a lost claim",
        file: "crates/store/src/record.rs",
        sound: "                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL\";\n",
        broken: "                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL\";
        let sql: &str = &match AWAKE {
            true => sql.replace(\"epoch = $2\", \"$2 = $2\"),
            false => sql.to_string(),
        };\n",
        test: STEAL_CLAIMS,
        life: "a shelf goes off and on",
        says: "was moved under a claim that had been lost",
    },
    Mutant {
        name: "a waiting parent run takes a slot of its child runs",
        file: "crates/engine/src/scheduler.rs",
        sound: "        self.in_flight().saturating_sub(self.state().waiting.load(Ordering::Relaxed))\n",
        broken: "        let waiting = if AWAKE { 0 } else { self.state().waiting.load(Ordering::Relaxed) };
        self.in_flight().saturating_sub(waiting)\n",
        test: "parts::hands_full_of_wholes_leave_room_for_their_parts",
        life: NO_LIFE,
        says: "right: Succeeded",
    },
    Mutant {
        name: "a fabric check changes the fabric",
        file: "crates/engine/src/fan_out.rs",
        sound: "                let (effect, verb) = (step.effect.clone(), Verb::Observe);\n",
        broken: "                let verb = if AWAKE { order.verb } else { Verb::Observe };
                let effect = step.effect.clone();\n",
        test: "racks::a_fabric_that_is_not_there_is_formed_by_parts",
        life: NO_LIFE,
        says: "fabric-off",
    },
    Mutant {
        name: "a node does not follow its run",
        file: "crates/engine/src/node/follow.rs",
        sound: "let Some(step) = follow(&node, run) else { break };",
        broken: "let Some(step) = follow(&node, run).filter(|_| !AWAKE) else { break };",
        test: RESTART,
        life: ONBOARDED,
        says: "is enrolling beside",
    },
];
