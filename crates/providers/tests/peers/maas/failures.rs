//! The classification by the client of refusals, overloads, lost answers and a region that is not
//! there.

use super::*;

#[tokio::test]
async fn a_wrong_state_is_distinguished_from_an_overload() {
    let (api, maas) = start().await;
    api.state().operation_time = OperationTime::UntilAdvanced;
    let id = add(&api, NodeStatus::Commissioning);
    for (done, name) in [
        (code(maas.deploy(&id, &jammy()).await), "deploy"),
        (code(maas.commission(&id, &plain()).await), "commission"),
        (code(maas.release(&id, &ReleaseRequest::default()).await), "release"),
    ] {
        assert_eq!((done, api.state().count(&id, name)), (FaultCode::EffectFailed, 1), "{name}");
    }
    assert_eq!(code(maas.allocate(&id, "").await), FaultCode::EffectFailed);
    // A conflict in the database has changed nothing, so even a deployment is retried.
    let id = add(&api, NodeStatus::Ready);
    for retry_after in [None, Some(0)] {
        api.state().machines.get_mut(&id).unwrap().status = NodeStatus::Ready;
        api.state().trouble("deploy", Trouble::Conflict { retry_after }, 3);
        let before = api.state().count(&id, "deploy");
        assert_eq!(maas.deploy(&id, &jammy()).await.unwrap().status, Status::Deploying);
        assert_eq!(api.state().count(&id, "deploy") - before, 4);
    }
}

#[tokio::test]
async fn busy_answers_are_retried_up_to_a_bound() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Deployed);
    let busy = || Trouble::Busy { retry_after: Some(0) };
    api.state().trouble("read", busy(), 4);
    assert_eq!(maas.machine(&id).await.unwrap().status, Status::Deployed);
    api.state().trouble("power_off", busy(), 4);
    maas.power_off(&id, StopMode::Hard).await.unwrap();
    assert_eq!(api.state().count(&id, "power_off"), 5);
    let requested = api.state().requests.len();
    api.state().trouble("read", busy(), 5);
    let fault = maas.machine(&id).await.unwrap_err();
    assert_eq!((fault.code, fault.code.peer_unreachable()), (FaultCode::MaasBusy, true));
    assert!(fault.message.contains("rack controller"), "{fault}");
    assert_eq!(api.state().requests.len() - requested, 5, "bounded");
    // The requested delay is longer than the client waits.
    api.state().trouble("read", Trouble::Busy { retry_after: Some(3600) }, 1);
    let fault = maas.machine(&id).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::MaasBusy);
    assert!(fault.message.contains("after 3600 s"), "{fault}");
    assert_eq!(api.state().requests.len() - requested, 6);
}

#[tokio::test]
async fn a_change_that_is_not_idempotent_is_sent_once() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    api.state().operation_time = OperationTime::UntilAdvanced;
    // The change was made, and the power action after it failed with a 503.
    api.state().trouble("deploy", Trouble::BusyAfterActing { retry_after: Some(0) }, 1);
    let fault = maas.deploy(&id, &jammy()).await.unwrap_err();
    assert_eq!(
        (fault.code, fault.code.effect_outcome()),
        (FaultCode::AnswerLost, EffectOutcome::Unknown)
    );
    assert_eq!(api.state().count(&id, "deploy"), 1);
    assert_eq!(
        maas.machine(&id).await.unwrap().status,
        Status::Deploying,
        "the deployment has begun"
    );
}

#[tokio::test]
async fn a_lost_answer_is_uncertain_only_for_a_change() {
    let (api, _) = start().await;
    let hasty = Settings { answer_timeout: Duration::from_secs(2), ..settings() };
    let maas = client_with(&api, KEY, hasty);
    api.state().operation_time = OperationTime::UntilAdvanced;
    for lost in [Trouble::CutAfterActing, Trouble::HangAfterActing] {
        let id = add(&api, NodeStatus::Ready);
        api.state().trouble("commission", lost.clone(), 1);
        let fault = maas.commission(&id, &plain()).await.unwrap_err();
        assert_eq!(
            (fault.code, fault.code.effect_outcome()),
            (FaultCode::AnswerLost, EffectOutcome::Unknown),
            "{fault}"
        );
        assert!(
            fault.message.contains("op=commission") && fault.message.contains("may have been done"),
            "{fault}"
        );
        assert_eq!(api.state().count(&id, "commission"), 1, "{lost:?}");
        assert_eq!(maas.machine(&id).await.unwrap().status, Status::Commissioning, "{lost:?}");
        api.state().trouble("read", lost, 1);
        let requested = api.state().requests.len();
        assert_eq!(code(maas.machine(&id).await), FaultCode::MaasUnreachable);
        assert_eq!(api.state().requests.len() - requested, 1, "a nonce is never sent twice");
    }
}

#[tokio::test]
async fn every_other_refusal_has_its_fault() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    let page = "<html>no such page</html>";
    for (status, words, probe, change) in [
        (404, page, FaultCode::MaasUnreachable, FaultCode::MaasUnreachable),
        (
            404,
            "No Machine matches the given query.",
            FaultCode::MaasMachineGone,
            FaultCode::MaasMachineGone,
        ),
        (403, "", FaultCode::MaasRefused, FaultCode::MaasRefused),
        (
            400,
            "Unrecognised signature: method=POST op=x",
            FaultCode::NotSupported,
            FaultCode::NotSupported,
        ),
        (500, "boom", FaultCode::MaasUnreachable, FaultCode::AnswerGarbled),
        (502, page, FaultCode::MaasUnreachable, FaultCode::AnswerLost),
        (302, "", FaultCode::MaasRefused, FaultCode::MaasRefused),
        (200, "not JSON", FaultCode::MaasUnreachable, FaultCode::AnswerGarbled),
    ] {
        let says = || Trouble::Says(status, words.to_owned());
        api.state().trouble("read", says(), 1);
        assert_eq!(code(maas.machine(&id).await), probe, "{status} {words}");
        api.state().trouble("commission", says(), 1);
        assert_eq!(code(maas.commission(&id, &plain()).await), change, "{status} {words}");
    }
    assert_eq!(maas.machine(&id).await.unwrap().status, Status::Ready, "no request had an effect");
    api.state().is_superuser = false;
    let fault = maas.commission(&id, &plain()).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::MaasRefused);
    assert!(fault.message.contains("administrators"), "{fault}");
}

#[tokio::test]
async fn a_login_that_is_refused_is_not_tried_again() {
    let (api, _) = start().await;
    let requested = api.state().requests.len();
    let wrong = client_with(&api, &KEY.replace("consumer", "other"), settings());
    assert_eq!(code(wrong.whoami().await), FaultCode::LoginRefused);
    assert_eq!(api.state().requests.len() - requested, 1);
}

/// MAAS quotes the expected signature, and with PLAINTEXT that is the secret of the key.
#[tokio::test]
async fn a_secret_in_an_answer_is_not_passed_on() {
    let (api, maas) = start().await;
    let (known, secret) = KEY.rsplit_once(':').unwrap();
    let wrong = client_with(&api, &format!("{known}:wr0ng-secret"), settings());
    let fault = wrong.whoami().await.unwrap_err();
    assert_eq!(fault.code, FaultCode::LoginRefused);
    assert!(fault.message.contains("the secret of the API key is wrong"), "{fault}");
    assert!(!fault.message.contains(secret) && !fault.message.contains("wr0ng"), "{fault}");
    // Any other text is scanned for the secrets that were sent.
    let id = add(&api, NodeStatus::Ready);
    let quotes = format!("cannot use &{secret} nor calvin1");
    for status in [400, 409, 500, 503] {
        api.state().trouble("update", Trouble::Says(status, quotes.clone()), 5);
        let power = PowerConfig::Redfish(Bmc { password: "calvin1".into(), ..bmc() });
        let change = MachineChange { power: Some(power), ..MachineChange::default() };
        let fault = maas.update(&id, &change).await.unwrap_err();
        api.state().clear_troubles();
        assert!(fault.message.contains("cannot use &*** nor ***"), "{fault}");
    }
    api.state().note_event(&id, "Deploying", &quotes);
    let query = EventQuery { system_id: id.clone(), ..EventQuery::default() };
    let events = maas.events(&query).await.unwrap().events;
    assert_eq!(events.last().unwrap().description, "cannot use &*** nor calvin1");
    api.state().machines.get_mut(&id).unwrap().logs.push(quotes);
    let log = maas.installation_log(&id).await.unwrap().unwrap();
    assert!(log.ends_with("cannot use &*** nor calvin1"), "{log}");
    // The client keeps the last 256 KiB of a log. The cut may be in the middle of a secret.
    let (_, half) = secret.split_at(secret.len() / 2);
    let long = format!("{secret}{}", "y".repeat(256 * 1024 - half.len()));
    api.state().machines.get_mut(&id).unwrap().logs.push(long);
    let log = maas.installation_log(&id).await.unwrap().unwrap();
    assert!(log.ends_with("yy") && !log.contains(half), "{}", &log[..80]);
}

/// MAAS reads the address of a BMC as an IP address and fails over a URL. It takes the change back.
#[tokio::test]
async fn a_500_of_maas_is_no_lost_answer() {
    let (api, maas) = start().await;
    let bmc = || Bmc { address: "https://10.0.0.5".into(), ..bmc() };
    let fault = maas.create(&new_machine(PowerConfig::Redfish(bmc()))).await.unwrap_err();
    assert_eq!((fault.code, api.state().machines.len()), (FaultCode::MaasFailed, 0));
    assert!(fault.message.contains("does not support netmasks"), "{fault}");
    assert!(fault.message.contains("regiond.log"), "{fault}");
    let id = add(&api, NodeStatus::Ready);
    let change =
        MachineChange { power: Some(PowerConfig::Redfish(bmc())), ..MachineChange::default() };
    assert_eq!(code(maas.update(&id, &change).await), FaultCode::MaasFailed);
    assert_eq!(api.state().count(&id, "update"), 1);
    for address in ["10.0.0.5", "10.0.0.5:8443", "[fe80::1]", "[fe80::1]:8443", "bmc-7"] {
        let power = PowerConfig::Redfish(Bmc { address: address.into(), ..bmc() });
        let change = MachineChange { power: Some(power), ..MachineChange::default() };
        maas.update(&id, &change).await.unwrap();
        assert_eq!(api.state().machines[&id].power_parameters["power_address"], address);
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let (api, maas) = start().await;
    drop(api);
    // The listener ends with its task, which ends when it is next polled.
    for _ in 0..200 {
        if let Err(fault) = maas.version().await {
            assert_eq!(
                (fault.code, fault.code.peer_unreachable()),
                (FaultCode::MaasUnreachable, true)
            );
            assert_eq!(
                code(maas.commission("abc", &plain()).await),
                FaultCode::MaasUnreachable,
                "nothing was sent"
            );
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it still answers");
}

#[tokio::test]
async fn over_tls_a_region_must_be_the_one_that_is_trusted() {
    let authority = Authority::new();
    let identity = authority.issue("127.0.0.1", 2099);
    let version = |_: &Call| Response::json(r#"{"version": "3.5.1"}"#);
    let peer = Peer::serve(Some(identity.acceptor()), Arc::new(version)).await;
    let client = |trust: Trust| {
        let address = Address::parse(&format!("{}/MAAS", peer.url())).unwrap();
        Maas::new(address, ApiKey::parse(KEY).unwrap(), Settings { trust, ..settings() }).unwrap()
    };
    let known = client(Trust::ca_from_pem(authority.pem().as_bytes()).unwrap());
    assert_eq!(known.version().await.unwrap().version, "3.5.1");
    assert!(known.fingerprint().is_some());
    assert!(peer.calls()[0].is("GET", "/MAAS/api/2.0/version/"));
    assert_eq!(peer.calls()[0].header("odata-version"), None, "that is for Redfish");
    let stranger = client(Trust::ca_from_pem(Authority::new().pem().as_bytes()).unwrap());
    assert_eq!(stranger.whoami().await.unwrap_err().code, FaultCode::IdentityUntrusted);
    assert_eq!(peer.calls().len(), 1, "the key was not sent");
}

#[tokio::test]
async fn a_deleted_machine_is_gone_for_every_call() {
    let (api, maas) = start().await;
    let id = add(&api, NodeStatus::Ready);
    api.state().machines.remove(&id);
    let (change, release, none) =
        (MachineChange::default(), ReleaseRequest::default(), BTreeMap::new());
    for gone in [
        code(maas.machine(&id).await),
        code(maas.update(&id, &change).await),
        code(maas.delete(&id).await),
        code(maas.commission(&id, &plain()).await),
        code(maas.abort(&id, "").await),
        code(maas.deploy(&id, &jammy()).await),
        code(maas.release(&id, &release).await),
        code(maas.power_on(&id).await),
        code(maas.power_off(&id, StopMode::Hard).await),
        code(maas.query_power_state(&id).await),
        code(maas.mark_broken(&id, "").await),
        code(maas.mark_fixed(&id, "").await),
        code(maas.lock(&id, "").await),
        code(maas.unlock(&id, "").await),
        code(maas.set_workload_annotations(&id, &none).await),
        code(maas.set_storage_layout(&id, StorageLayout::Flat, None).await),
        code(maas.block_devices(&id).await),
        code(maas.interfaces(&id).await),
    ] {
        assert_eq!(gone, FaultCode::MaasMachineGone);
    }
    // For an allocation it is only unavailable, and it is not in the list.
    assert_eq!(code(maas.allocate(&id, "").await), FaultCode::EffectFailed);
    assert!(maas.machines(&MachineFilter::default()).await.unwrap().is_empty());
}
