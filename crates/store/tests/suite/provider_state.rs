//! Provider state: checkpoints, encrypted credentials, pinned identities, lockouts and deployments.

use crate::harness::{Db, at, event};
use model::credential::{CredentialPolicy, PeerBinding};
use model::deploy::{Deployment, DeploymentClaim, DeploymentStage};
use model::effect::EffectKey;
use model::filter::{Filter, FilterSubject};
use model::id::MachineId;
use model::id::RunId;
use model::image::{Artifact, DiskFormat, Image, ImageContent};
use std::time::Duration;
use store::{
    CheckpointRow, CredentialRow, DeploymentLookup, DeploymentRow, IdentityRow, LockoutRow,
    StoreError,
};

on_both!(
    a_key_begins_once,
    a_key_stopped_before_its_start_never_starts,
    credentials_have_versions_that_never_repeat,
    an_identity_is_pinned_once,
    the_latest_lockout_replaces_the_earlier,
    an_image_name_is_unique,
    a_mac_address_has_one_open_deployment,
    a_deployment_is_found_by_each_lookup_key,
);

fn key(attempt: u32) -> EffectKey {
    EffectKey::new(&RunId::trusted("op-1"), "reboot", attempt)
}

fn begun(body: &str) -> CheckpointRow {
    CheckpointRow { stopped_before_start: false, body: body.into() }
}

fn bar() -> CheckpointRow {
    CheckpointRow { stopped_before_start: true, body: "null".into() }
}

async fn a_key_begins_once(db: Db) {
    let mut racing = Vec::new();
    for n in 0..20 {
        let note = begun(&n.to_string());
        let work = tx!([note], |tx| tx.begin_checkpoint(&key(1), &note, at(1)).await);
        racing.push(tokio::spawn(db.write(work)));
    }
    let mut first = 0;
    let mut observed = Vec::new();
    for one in racing {
        match one.await.unwrap().unwrap() {
            None => first += 1,
            Some(before) => observed.push(before),
        }
    }
    assert_eq!(first, 1);
    let stored = db.read(tx!([], |tx| tx.checkpoint(&key(1)).await)).await.unwrap().unwrap();
    assert!(observed.iter().all(|before| *before == stored), "{observed:?}");
    // A compare-and-swap with an outdated body changes nothing.
    for (before, changed) in [("old", false), (stored.body.as_str(), true), (&stored.body, false)] {
        let before = before.to_string();
        let swap = tx!([before], |tx| tx.swap_checkpoint(&key(1), &before, "new", at(2)).await);
        assert_eq!(db.write(swap).await, Ok(changed), "{before}");
    }
    assert_eq!(db.read(tx!([], |tx| tx.checkpoint(&key(1)).await)).await, Ok(Some(begun("new"))));
    assert_eq!(db.read(tx!([], |tx| tx.checkpoint(&key(2)).await)).await, Ok(None));
}

async fn a_key_stopped_before_its_start_never_starts(db: Db) {
    let stopped = db.write(tx!([], |tx| tx.begin_checkpoint(&key(1), &bar(), at(1)).await)).await;
    assert_eq!(stopped, Ok(None));
    let late = tx!([], |tx| tx.begin_checkpoint(&key(1), &begun("late"), at(2)).await);
    assert_eq!(db.write(late).await, Ok(Some(bar())));
    let amended =
        db.write(tx!([], |tx| tx.swap_checkpoint(&key(1), "null", "late", at(3)).await)).await;
    assert_eq!(amended, Ok(false));
    // A key that has begun cannot be stopped before its start: the caller gets its checkpoint.
    db.write(tx!([], |tx| tx.begin_checkpoint(&key(2), &begun("b"), at(1)).await)).await.unwrap();
    let stop = tx!([], |tx| tx.begin_checkpoint(&key(2), &bar(), at(2)).await);
    assert_eq!(db.write(stop).await, Ok(Some(begun("b"))));
}

fn credential(version: i64) -> CredentialRow {
    CredentialRow {
        name: "bmc".into(),
        kind: "password".into(),
        login: "root".into(),
        sealed: vec![0, 159, 146, 150],
        version,
        updated_at: at(version),
        // An older farrier stores none.
        policy: (version > 1).then(|| CredentialPolicy {
            peers: vec![PeerBinding::parse("peers", "10.1.0.0/24").unwrap()],
            plain_http: version > 2,
        }),
        key_id: (version > 1).then(|| "k-1".into()),
    }
}

async fn credentials_have_versions_that_never_repeat(db: Db) {
    let put = |version: i64, read_at| {
        tx!([], |tx| tx.put_credential(&credential(version), read_at, &event()).await)
    };
    assert_eq!(db.write(put(1, None)).await, Ok(()));
    assert_eq!(db.write(put(1, None)).await, Err(StoreError::Conflict));
    assert_eq!(db.write(put(2, Some(1))).await, Ok(()));
    assert_eq!(db.write(put(2, Some(1))).await, Err(StoreError::Conflict));
    let read = db.read(tx!([], |tx| tx.credential("bmc").await)).await;
    assert_eq!(read, Ok(Some(credential(2))));
    assert_eq!(
        db.read(tx!([], |tx| tx.credentials(&Filter::default(), "bmc", 9).await?.complete())).await,
        Ok(vec![])
    );
    for (text, expected) in [
        ("", vec![credential(2)]),
        ("name=bmc AND user!=nobody", vec![credential(2)]),
        ("kind=maas-key", vec![]),
    ] {
        let filter = Filter::parse(text, FilterSubject::Credential).unwrap();
        let listed =
            db.read(tx!([filter], |tx| tx.credentials(&filter, "", 9).await?.complete())).await;
        assert_eq!(listed, Ok(expected), "{text}");
    }

    let gone = tx!([], |tx| tx.delete_credential("bmc", 2, &event()).await);
    db.write(gone).await.unwrap();
    assert_eq!(db.read(tx!([], |tx| tx.credential("bmc").await)).await, Ok(None));
    let last = db.read(tx!([], |tx| tx.last_credential_version("bmc").await)).await;
    assert_eq!(last, Ok(3));
    assert_eq!(db.write(put(4, None)).await, Ok(()));
}

async fn an_identity_is_pinned_once(db: Db) {
    const PEER: &str = "https://10.0.0.5";
    let met = |identity: &str, version| IdentityRow {
        peer: PEER.into(),
        identity: identity.into(),
        first_seen: at(1),
        version,
    };
    let put = |row: IdentityRow, read_at| {
        db.write(tx!([row], |tx| tx.put_identity(&row, read_at, &event())))
    };
    assert_eq!(put(met("a", 1), None).await, Ok(()));
    assert_eq!(put(met("b", 2), None).await, Err(StoreError::Conflict));
    assert_eq!(put(met("b", 3), Some(2)).await, Err(StoreError::Conflict));
    assert_eq!(put(met("b", 2), Some(1)).await, Ok(()));
    let all =
        db.read(tx!([], |tx| tx.identities(&Filter::default(), "", 9).await?.complete())).await;
    assert_eq!(all, Ok(vec![met("b", 2)]));
    for (version, expected) in
        [(1, Err(StoreError::Conflict)), (2, Ok(())), (2, Err(StoreError::Conflict))]
    {
        let gone = met("b", version);
        let forget = tx!([gone], |tx| tx.delete_identity(&gone, &event()));
        assert_eq!(db.write(forget).await, expected, "{version}");
    }
    let last = db.read(tx!([], |tx| tx.last_identity_version(PEER).await)).await;
    assert_eq!(last, Ok(3));
    assert_eq!(put(met("c", 4), None).await, Ok(()));
}

async fn the_latest_lockout_replaces_the_earlier(db: Db) {
    let refused = |version| LockoutRow {
        peer: "https://10.0.0.5".into(),
        credential: "bmc".into(),
        version,
        message: "401".into(),
        since: at(version),
    };
    for version in [1, 2] {
        let row = refused(version);
        db.write(tx!([row], |tx| tx.record_lockout(&row).await)).await.unwrap();
    }
    let known = db.read(tx!([], |tx| tx.lockout("https://10.0.0.5").await)).await;
    assert_eq!(known, Ok(Some(refused(2))));
    for found in [true, false] {
        let unlocked = db.write(tx!([], |tx| tx.delete_lockout("https://10.0.0.5").await)).await;
        assert_eq!(unlocked, Ok(found));
    }
}

fn image(name: &str) -> Image {
    let file = Artifact { sha256: "ab".repeat(32), size: 10, url: None };
    let body = ImageContent::Disk { format: DiskFormat::Raw, file };
    Image { name: name.into(), body, created_at: at(1) }
}

fn deployment_on(attempt: u32, machine: &str, macs: &[&str]) -> Deployment {
    let (machine, scenario) = (MachineId::trusted(machine), Duration::from_secs(1_000));
    let one = Deployment::new(key(attempt), machine, image("debian-12"), at(1), scenario);
    let macs = macs.iter().map(ToString::to_string).collect();
    Deployment { macs, stage: DeploymentStage::Requested, ..one }
}

async fn an_image_name_is_unique(db: Db) {
    for name in ["b", "a"] {
        let image = image(name);
        let add = tx!([image], |tx| tx.insert_image(&image, &event()).await);
        db.write(add).await.unwrap();
    }
    let again = tx!([], |tx| tx.insert_image(&image("a"), &event()).await);
    assert_eq!(db.write(again).await, Err(StoreError::Conflict));
    let listed = db
        .read(tx!([], |tx| tx.images(&Filter::default(), "", 10).await?.complete()))
        .await
        .unwrap();
    assert_eq!(listed, [image("a"), image("b")]);
    for (text, after, expected) in [
        ("", "a", vec![image("b")]),
        ("name in (b, c)", "", vec![image("b")]),
        ("kind=iso", "", vec![]),
    ] {
        let filter = Filter::parse(text, FilterSubject::Image).unwrap();
        let listed =
            db.read(tx!([filter], |tx| tx.images(&filter, after, 10).await?.complete())).await;
        assert_eq!(listed, Ok(expected), "{text}");
    }
    let delete = || tx!([], |tx| tx.delete_image("a", &event()).await);
    db.write(delete()).await.unwrap();
    assert_eq!(db.write(delete()).await, Err(StoreError::Conflict));
    assert_eq!(db.read(tx!([], |tx| tx.image("a").await)).await, Ok(None));
    // A name may be reused; its history continues.
    db.write(tx!([], |tx| tx.insert_image(&image("a"), &event()).await)).await.unwrap();
}

async fn a_mac_address_has_one_open_deployment(db: Db) {
    let open = |attempt, machine: &'static str, token: &'static str| {
        let one = deployment_on(attempt, machine, &["52:54:00:00:00:01"]);
        tx!([one], |tx| tx.insert_deployment(&one, token, at(1)).await)
    };
    db.write(open(1, "m-1", "t1")).await.unwrap();
    assert_eq!(db.write(open(2, "m-2", "t2")).await, Err(StoreError::Conflict));
    let in_use = || tx!([], |tx| tx.image_in_use("debian-12").await);
    assert_eq!(db.read(in_use()).await, Ok(true));
    let machine = MachineId::trusted("m-1");
    let mine = db.read(tx!([machine], |tx| tx.open_deployments(&machine).await)).await.unwrap();
    assert_eq!(mine.len(), 1);
    // A closed deployment releases its MAC addresses; a second write of the same version fails.
    let deployment = Deployment { stage: DeploymentStage::Closed, ..mine[0].deployment.clone() };
    let row = DeploymentRow { deployment, version: mine[0].version };
    let close = || tx!([row], |tx| tx.update_deployment(&row, at(2)).await);
    db.write(close()).await.unwrap();
    assert_eq!(db.write(close()).await, Err(StoreError::Conflict));
    assert_eq!(db.read(in_use()).await, Ok(false));
    db.write(open(2, "m-2", "t2")).await.unwrap();
}

async fn a_deployment_is_found_by_each_lookup_key(db: Db) {
    let macs = ["52:54:00:00:00:01", "52:54:00:00:00:02"];
    let mut one = deployment_on(1, "m-1", &macs);
    let open = tx!([one], |tx| tx.insert_deployment(&one, "token-sum", at(1)).await);
    db.write(open).await.unwrap();
    let find = |shown: DeploymentLookup| tx!([shown], |tx| tx.deployment(&shown).await);
    for shown in [
        DeploymentLookup::Key(key(1)),
        DeploymentLookup::Mac(macs[0].into()),
        DeploymentLookup::Mac(macs[1].into()),
        DeploymentLookup::Token("token-sum".into()),
    ] {
        let found = db.read(find(shown.clone())).await.unwrap();
        assert_eq!(found, Some(DeploymentRow { deployment: one.clone(), version: 1 }), "{shown:?}");
    }
    let session = DeploymentLookup::Session("s".into());
    assert_eq!(db.read(find(session.clone())).await, Ok(None));
    one.claim(&DeploymentClaim { macs: vec![macs[1].into()], session: "s".into() }, at(2)).unwrap();
    let row = DeploymentRow { deployment: one.clone(), version: 1 };
    db.write(tx!([row], |tx| tx.update_deployment(&row, at(2)).await)).await.unwrap();
    let found = db.read(find(session)).await.unwrap();
    assert_eq!(found, Some(DeploymentRow { deployment: one, version: 2 }));
}
