//! Windows and freezes are stored with their versions and histories, and read as they hold.

use crate::harness::{Db, at, event};
use model::filter::{Filter, FilterSubject};
use model::window::{HoldsFor, StartRule, StartRuleId, StartRuleKind, StartTerms, WeeklyWindows};
use store::StoreError;

on_both!(a_rule_is_stored_with_its_version_and_history, only_the_rules_that_hold_are_read,);

fn window(name: &str, holds_for: HoldsFor) -> StartRule {
    let open = WeeklyWindows::parse("open", "Mon-Fri 22:00-04:00 Europe/Berlin").unwrap();
    StartRule {
        id: StartRuleId::trusted(StartRuleKind::Window, name),
        filter: "labels.env=prod".into(),
        holds_for,
        terms: StartTerms::Open(open),
        created_by: "ada".into(),
        created_at: at(1),
        updated_at: at(2),
        version: 0,
    }
}

fn freeze(name: &str, holds_for: HoldsFor, until_s: i64) -> StartRule {
    let terms = StartTerms::Frozen { until: at(until_s), reason: "audit".into() };
    let id = StartRuleId::trusted(StartRuleKind::Freeze, name);
    StartRule { id, terms, ..window(name, holds_for) }
}

async fn add(db: &Db, one: StartRule) -> StartRule {
    let insert = tx!([one], |tx| {
        let mut one = one;
        tx.lock_start_rules().await?;
        tx.insert_start_rule(&mut one, &event()).await?;
        Ok(one)
    });
    db.write(insert).await.unwrap()
}

async fn a_rule_is_stored_with_its_version_and_history(db: Db) {
    for rule in [window("night", HoldsFor::Rollouts), freeze("night", HoldsFor::Everything, 900)] {
        let made = add(&db, rule).await;
        let id = made.id.clone();
        let read = || {
            let id = id.clone();
            db.read(tx!([id], |tx| tx.start_rule(&id).await))
        };
        assert_eq!(read().await.unwrap(), Some(made.clone()));
        let change = |version: i64| {
            let one = StartRule { filter: String::new(), version, ..made.clone() };
            let update = tx!([one], |tx| {
                let mut one = one;
                tx.update_start_rule(&mut one, &event())?;
                Ok(one)
            });
            db.write(update)
        };
        assert_eq!(change(made.version + 5).await, Err(StoreError::Conflict));
        let changed = change(made.version).await.unwrap();
        assert_eq!(changed.version, made.version + 1);
        assert_eq!(read().await.unwrap(), Some(changed.clone()));
        let stale = made.clone();
        let delete =
            |one: StartRule| db.write(tx!([one], |tx| tx.delete_start_rule(&one, &event())));
        assert_eq!(delete(stale).await, Err(StoreError::Conflict));
        delete(changed.clone()).await.unwrap();
        assert_eq!(read().await.unwrap(), None);
        // One of the same name continues the history.
        let again = add(&db, made.clone()).await;
        assert_eq!(again.version, changed.version + 2);
    }
    let count = db.read(tx!([], |tx| tx.count_start_rules().await));
    assert_eq!(count.await.unwrap(), 2);
}

async fn only_the_rules_that_hold_are_read(db: Db) {
    add(&db, window("night", HoldsFor::Rollouts)).await;
    add(&db, window("week", HoldsFor::Everything)).await;
    add(&db, freeze("past", HoldsFor::Everything, 100)).await;
    add(&db, freeze("now", HoldsFor::Rollouts, 101)).await;
    for (by_rollout, found) in
        [(true, vec!["freeze:now", "window:night", "window:week"]), (false, vec!["window:week"])]
    {
        let read = db.read(tx!([], |tx| tx.start_rules_in_force(by_rollout, at(100)).await));
        let words: Vec<String> =
            read.await.unwrap().iter().map(|rule| rule.id.to_string()).collect();
        assert_eq!(words, found, "by a rollout: {by_rollout}");
    }
    for (kind, filter, after, found) in [
        (StartRuleKind::Window, "", "", vec!["night", "week"]),
        (StartRuleKind::Window, "", "night", vec!["week"]),
        (StartRuleKind::Freeze, "holds_for=everything", "", vec!["past"]),
        (StartRuleKind::Freeze, "name=now", "", vec!["now"]),
    ] {
        let filter = Filter::parse(filter, FilterSubject::StartRule).unwrap();
        let page = db.read(tx!([filter], |tx| tx.start_rules(kind, &filter, after, 9).await));
        let names: Vec<String> =
            page.await.unwrap().items.into_iter().map(|rule| rule.id.name).collect();
        assert_eq!(names, found, "{kind:?} {filter:?} after {after:?}");
    }
}
