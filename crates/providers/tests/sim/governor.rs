use model::fault::{Fault, FaultCode, Result};
use providers::governor::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const LIMIT: Duration = Duration::from_secs(5);

fn down() -> Result<()> {
    Err(Fault::new(FaultCode::BmcUnreachable, "no route"))
}

#[tokio::test(start_paused = true)]
async fn a_bmc_is_called_once_at_a_time_and_others_meanwhile() {
    let governor = Governor::new(Settings::default());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut calls = Vec::new();
    for n in 0..40 {
        let (governor, now, most) = (governor.clone(), Arc::clone(&now), Arc::clone(&most));
        calls.push(tokio::spawn(async move {
            let call = async {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            };
            governor.call(&format!("bmc-{}", n % 4), Priority::Operator, LIMIT, call).await
        }));
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_stops_polling_but_not_operators() {
    let governor = Governor::new(Settings::default());
    let call = async |priority| governor.call("b", priority, LIMIT, async { down() }).await;
    for _ in 0..3 {
        call(Priority::Polling).await.unwrap_err();
    }
    let fault = call(Priority::Polling).await.unwrap_err();
    assert!(
        fault.message.contains("was not asked") && fault.message.contains("no route"),
        "{fault}"
    );
    let status = governor.status("b").unwrap();
    assert_eq!((status.failures, status.circuit_open_for), (3, Some(Duration::from_secs(15))));
    assert_eq!(governor.totals().0, 1);
    let fault = call(Priority::Operator).await.unwrap_err();
    assert_eq!(fault.message, "no route");
    // The circuit closes after its open period, and one good answer resets it.
    tokio::time::advance(Duration::from_secs(31)).await;
    governor.call("b", Priority::Polling, LIMIT, async { Ok(()) }).await.unwrap();
    assert_eq!(governor.status("b").unwrap().circuit_open_for, None);
    assert_eq!(governor.status("c"), None);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_includes_the_wait_and_a_timeout_may_have_acted() {
    let governor = Governor::new(Settings::default());
    let first = governor.clone();
    let stuck = tokio::spawn(async move {
        first
            .call("b", Priority::Operator, LIMIT * 2, std::future::pending::<Result<(), _>>())
            .await
    });
    tokio::task::yield_now().await;
    let waited = governor.call("b", Priority::Operator, LIMIT, async { Ok(()) }).await;
    assert_eq!(waited.unwrap_err().code, FaultCode::BmcBusy);
    // A poll that is not admitted gives up after half of its time and records no failure.
    let begun = Instant::now();
    let polled = governor.poll("b", LIMIT, async { Ok(()) }).await;
    assert_eq!((polled, begun.elapsed()), (Ok(None), LIMIT / 2));
    assert_eq!(governor.status("b").unwrap().failures, 0);
    assert_eq!(stuck.await.unwrap().unwrap_err().code, FaultCode::AnswerLost);
    assert_eq!(governor.poll("b", LIMIT, async { Ok(7) }).await, Ok(Some(7)));
    governor.call("b", Priority::Operator, LIMIT, async { Ok(()) }).await.unwrap();
}
