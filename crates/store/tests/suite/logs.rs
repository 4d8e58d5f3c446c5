//! Logs: chunks at byte offsets, stored once, readable from any offset.

use crate::harness::{Db, at, run};
use model::id::RunId;
use store::{LogLine, NewLog, StoreError};

on_both!(
    a_log_is_read_from_anywhere,
    existing_chunks_are_ignored,
    bytes_are_counted_by_attempt,
    a_long_log_comes_in_pages,
    logs_of_runs_do_not_mix,
    any_bytes_are_kept,
    a_worker_that_lost_its_claim_writes_no_log,
);

fn chunk(start: i64, step: &str, attempt: u32, data: &[u8]) -> NewLog {
    let (ts, stream) = (at(start), "stdout");
    NewLog { start, ts, step: step.into(), attempt, stream, data: data.to_vec() }
}

async fn append(db: &Db, id: &RunId, lines: Vec<NewLog>) {
    db.write(tx!([id, lines], |tx| tx.append_log(&id, &lines))).await.unwrap();
}

async fn log_from(db: &Db, id: &RunId, offset: i64, limit: i64) -> Vec<LogLine> {
    db.read(tx!([id], |tx| tx.read_log(&id, offset, limit).await)).await.unwrap()
}

async fn end(db: &Db, id: &RunId) -> i64 {
    db.read(tx!([id], |tx| tx.log_end(&id).await)).await.unwrap()
}

fn text(lines: &[LogLine]) -> String {
    lines.iter().map(|line| String::from_utf8_lossy(&line.data)).collect()
}

async fn a_log_is_read_from_anywhere(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    assert_eq!((end(&db, &id).await, log_from(&db, &id, 0, 10).await), (0, vec![]));
    append(&db, &id, vec![chunk(0, "one", 1, b"hello "), chunk(6, "one", 1, b"world\n")]).await;
    append(&db, &id, vec![chunk(12, "two", 1, b"and more")]).await;
    assert_eq!(end(&db, &id).await, 20);
    let complete = "hello world\nand more";
    for offset in 0..=25_usize {
        let lines = log_from(&db, &id, offset as i64, 10).await;
        assert_eq!(text(&lines), complete.get(offset..).unwrap_or(""), "from {offset}");
        if let Some(first) = lines.first() {
            assert_eq!(first.start, offset as i64);
        }
    }
    let line = log_from(&db, &id, 14, 1).await.remove(0);
    assert_eq!((line.step.as_str(), line.stream.as_str(), line.ts), ("two", "stdout", at(12)));
    assert_eq!((line.start, text(&[line])), (14, "d more".to_string()));
}

async fn existing_chunks_are_ignored(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let pieces = vec![chunk(0, "one", 1, b"first"), chunk(5, "one", 1, b"second")];
    append(&db, &id, pieces.clone()).await;
    let mut again = pieces;
    again.push(chunk(11, "one", 1, b"third"));
    again[0].data = b"other".to_vec();
    append(&db, &id, again).await;
    assert_eq!(text(&log_from(&db, &id, 0, 10).await), "firstsecondthird");
    assert_eq!(end(&db, &id).await, 16);
}

async fn bytes_are_counted_by_attempt(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let pieces = vec![
        chunk(0, "one", 1, b"12345"),
        chunk(5, "one", 2, b"123"),
        chunk(8, "two", 1, b"1"),
        chunk(9, "one", 2, b"1234"),
    ];
    append(&db, &id, pieces).await;
    for (step, attempt, bytes) in [("one", 1, 5), ("one", 2, 7), ("two", 1, 1), ("two", 2, 0)] {
        let logged = tx!([id], |tx| tx.logged_bytes(&id, step, attempt).await);
        assert_eq!(db.read(logged).await, Ok(bytes), "{step} {attempt}");
    }
}

async fn a_long_log_comes_in_pages(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let line = |n: i64| format!("line {n:04}\n");
    let pieces = (0..300).map(|n| chunk(n * 10, "one", 1, line(n).as_bytes())).collect();
    append(&db, &id, pieces).await;
    assert_eq!(end(&db, &id).await, 3_000);
    let (mut offset, mut read, mut pages) = (3, String::new(), 0);
    loop {
        let lines = log_from(&db, &id, offset, 64).await;
        let Some(last) = lines.last() else { break };
        offset = last.start + last.data.len() as i64;
        read.push_str(&text(&lines));
        pages += 1;
    }
    assert_eq!(read, (0..300).map(line).collect::<String>()[3..]);
    assert_eq!(pages, 5);
}

async fn logs_of_runs_do_not_mix(db: Db) {
    let (one, two) = (db.add_run("op-1").await.spec.id, db.add_run("op-2").await.spec.id);
    append(&db, &one, vec![chunk(0, "one", 1, b"mine")]).await;
    append(&db, &two, vec![chunk(0, "one", 1, b"yours!")]).await;
    assert_eq!(text(&log_from(&db, &one, 0, 10).await), "mine");
    assert_eq!((end(&db, &one).await, end(&db, &two).await), (4, 6));
}

async fn any_bytes_are_kept(db: Db) {
    let id = run("op-1", "m-1").spec.id;
    let bytes: Vec<u8> = (0..=255).collect();
    append(&db, &id, vec![chunk(0, "one", 1, &bytes)]).await;
    assert_eq!(log_from(&db, &id, 0, 1).await[0].data, bytes);
    assert_eq!(log_from(&db, &id, 200, 1).await[0].data, bytes[200..]);
}

async fn a_worker_that_lost_its_claim_writes_no_log(db: Db) {
    let id = db.add_run("op-1").await.spec.id;
    let write = |epoch: i64, start: i64| {
        let lines = [chunk(start, "one", 1, b"hello")];
        db.write(tx!([id, lines], |tx| tx.append_log_claimed(&id, epoch, &lines).await))
    };
    assert_eq!(write(0, 0).await, Err(StoreError::Conflict), "it is not claimed");
    db.claim("a", at(10), 1).await;
    assert_eq!(write(1, 0).await, Ok(()));
    db.write(tx!([id], |tx| tx.release_unhandled(&id.object(), 1, at(10)))).await.unwrap();
    assert_eq!(write(1, 5).await, Err(StoreError::Conflict), "the claim was released");
    db.claim("b", at(10), 1).await;
    assert_eq!(write(1, 5).await, Err(StoreError::Conflict), "another worker has claimed it");
    assert_eq!(write(2, 5).await, Ok(()));
    assert_eq!(text(&log_from(&db, &id, 0, 10).await), "hellohello");
}
