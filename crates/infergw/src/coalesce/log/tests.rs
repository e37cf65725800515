//! The log against a model: random schedules of appends, joins, reads and leaves.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::task::Waker;

use proptest::prelude::*;

use super::*;

fn bounds(join_window: usize) -> Bounds {
    Bounds { join_window, join_age: Duration::from_secs(60), max_subscribers: 8 }
}

fn total() -> Arc<LogTotal> {
    Arc::new(LogTotal::new(usize::MAX))
}

fn poll(cursor: &mut Cursor) -> Poll<Step> {
    cursor.poll_step(&Context::from_waker(Waker::noop()))
}

fn room(log: &Log) -> Poll<Result<(), Closed>> {
    log.poll_room(&Context::from_waker(Waker::noop()))
}

/// Read all that is there; the bytes, and what stopped the reading.
fn drain(cursor: &mut Cursor) -> (Vec<u8>, Poll<Step>) {
    let mut bytes = Vec::new();
    loop {
        match poll(cursor) {
            Poll::Ready(Step::Frame(frame)) => bytes.extend_from_slice(&frame),
            other => return (bytes, other),
        }
    }
}

#[derive(Debug, Clone)]
enum Action {
    Append(usize),
    Join,
    Read(usize),
    Leave(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..200usize).prop_map(Action::Append),
        1 => Just(Action::Join),
        3 => (0..8usize).prop_map(Action::Read),
        1 => (0..8usize).prop_map(Action::Leave),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// C2: every reader gets every byte once, in order, from the first on, unless it is cut; M1: the log is bounded.
    #[test]
    fn c2_m1_every_reader_gets_a_prefix_or_the_whole(actions in prop::collection::vec(action(), 1..200), window in 1..2000usize) {
        let sum = total();
        let (log, first) = Log::start(bounds(window), true, Arc::clone(&sum));
        let mut readers = vec![Some((first, Vec::<u8>::new()))];
        let mut written = Vec::new();
        let mut waiting = false;
        for (n, action) in actions.into_iter().enumerate() {
            match action {
                // A producer that was told to wait does wait.
                Action::Append(size) if !waiting => {
                    let frame: Bytes = (0..size).map(|i| (n + i) as u8).collect::<Vec<_>>().into();
                    if log.append([frame.clone()]).is_ok() {
                        written.extend_from_slice(&frame);
                    }
                }
                Action::Append(_) => {}
                Action::Join => {
                    if let Some(cursor) = log.subscribe() {
                        prop_assert!(written.len() <= window, "joined past the window");
                        readers.push(Some((cursor, Vec::new())));
                    }
                }
                Action::Read(i) => {
                    let i = i % readers.len();
                    if let Some((cursor, got)) = &mut readers[i]
                        && let Poll::Ready(Step::Frame(frame)) = poll(cursor)
                    {
                        got.extend_from_slice(&frame);
                    }
                }
                Action::Leave(i) => {
                    let i = i % readers.len();
                    readers[i] = None;
                }
            }
            waiting = room(&log).is_pending();
            prop_assert!(waiting || log.lock().held <= window || log.subscribers() == 0);
            prop_assert!(log.lock().held <= window + 200);
            prop_assert_eq!(sum.held(), log.lock().held);
        }
        log.end(End::Done);
        for (cursor, got) in readers.iter_mut().flatten() {
            let (rest, stop) = drain(cursor);
            got.extend_from_slice(&rest);
            match stop {
                Poll::Ready(Step::End(end)) => {
                    prop_assert_eq!(end, End::Done);
                    prop_assert_eq!(&*got, &written);
                }
                Poll::Ready(Step::Cut) => prop_assert!(written.starts_with(got)),
                other => prop_assert!(false, "{:?}", other),
            }
        }
        readers.clear();
        drop(log);
        prop_assert_eq!(sum.held(), 0);
    }
}

#[test]
fn m1_a_lone_slow_reader_makes_the_producer_wait() {
    let (log, mut cursor) = Log::start(bounds(100), true, total());
    log.append([Bytes::from(vec![1; 90])]).unwrap();
    assert!(room(&log).is_ready());
    log.append([Bytes::from(vec![2; 90])]).unwrap();
    assert!(room(&log).is_pending());
    assert!(matches!(poll(&mut cursor), Poll::Ready(Step::Frame(_))));
    assert!(room(&log).is_ready());
}

#[test]
fn m1_a_slow_reader_beside_a_fast_one_is_cut() {
    let (log, mut fast) = Log::start(bounds(100), true, total());
    let mut slow = log.subscribe().unwrap();
    for _ in 0..3 {
        log.append([Bytes::from(vec![1; 60])]).unwrap();
        assert!(drain(&mut fast).1.is_pending());
        assert_eq!(room(&log), Poll::Ready(Ok(())));
    }
    assert_eq!(poll(&mut slow), Poll::Ready(Step::Cut));
    log.end(End::Done);
    assert_eq!(poll(&mut fast), Poll::Ready(Step::End(End::Done)));
}

#[test]
fn an_unshared_log_frees_what_its_reader_has_read() {
    let sum = total();
    let (log, mut cursor) = Log::start(bounds(1000), false, Arc::clone(&sum));
    assert!(log.subscribe().is_none());
    log.append([Bytes::from_static(b"abc")]).unwrap();
    assert_eq!(poll(&mut cursor), Poll::Ready(Step::Frame(Bytes::from_static(b"abc"))));
    assert_eq!(sum.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn c2_nobody_joins_past_the_age_the_number_or_the_end() {
    let (log, first) = Log::start(bounds(1000), true, total());
    let crowd: Vec<_> = std::iter::from_fn(|| log.subscribe()).collect();
    assert_eq!(crowd.len(), 7);
    drop(crowd);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(log.subscribe().is_none());

    let (log, second) = Log::start(bounds(1000), true, total());
    log.end(End::Done);
    assert!(log.subscribe().is_none());
    drop((first, second));
}

#[test]
fn over_the_total_no_flight_takes_joiners() {
    let sum = Arc::new(LogTotal::new(10));
    let (log, _reader) = Log::start(bounds(1000), true, Arc::clone(&sum));
    log.append([Bytes::from(vec![1; 11])]).unwrap();
    assert!(log.subscribe().is_none());
    let (other, _other_reader) = Log::start(bounds(1000), true, sum);
    assert!(other.subscribe().is_none());
}
