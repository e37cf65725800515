//! Operations on all ranks.

use std::time::{Duration, Instant};

use ts_client::{Error, Tuning};
use ts_wire::control::{
    FlushCacheReqInput, GetInternalStateReq, IsSchedulerPausedReqInput, PauseSchedulerReqInput, ResumeSchedulerReqInput,
};
use ts_wire::{ControlOutput, ControlRequest};

use super::{chunk, config, finish, group, request, rest, within};

fn is_paused() -> ControlRequest {
    ControlRequest::IsSchedulerPaused(IsSchedulerPausedReqInput { rid: None, http_worker_ipc: None })
}

fn pause(mode: &str) -> ControlRequest {
    ControlRequest::PauseScheduler(PauseSchedulerReqInput { rid: None, http_worker_ipc: None, mode: mode.into() })
}

fn resume() -> ControlRequest {
    ControlRequest::ResumeScheduler(ResumeSchedulerReqInput { rid: None, http_worker_ipc: None })
}

fn paused(replies: &[ControlOutput]) -> Vec<bool> {
    let flags = replies.iter().map(|reply| match reply {
        ControlOutput::IsSchedulerPaused(reply) => reply.is_paused,
        other => panic!("{other:?}"),
    });
    flags.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rank_answers() {
    let (client, _engines) = group(config(3), Tuning::default(), &["--wire", "crate010"]).await;
    assert_eq!(paused(&within(client.control(is_paused())).await.unwrap()), [false; 3]);
    assert_eq!(within(client.control(pause("keep"))).await.unwrap().len(), 3);
    assert_eq!(paused(&within(client.control(is_paused())).await.unwrap()), [true; 3]);
    assert_eq!(within(client.control(resume())).await.unwrap().len(), 3);
    let state = ControlRequest::GetInternalState(GetInternalStateReq { rid: None, http_worker_ipc: None });
    assert_eq!(within(client.control(state)).await.unwrap().len(), 3);
    // Calls of one kind take turns; calls of several kinds run side by side.
    let flush = || ControlRequest::FlushCache(FlushCacheReqInput { rid: None, http_worker_ipc: None });
    let calls = tokio::join!(client.control(flush()), client.control(is_paused()), client.control(flush()));
    assert!(calls.0.unwrap().len() == 3 && calls.1.unwrap().len() == 3 && calls.2.unwrap().len() == 3);
    finish(&mut within(client.generate(request("after", 3))).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_aborts_what_runs() {
    let (client, _engines) =
        group(config(1), Tuning::default(), &["--wire", "crate010", "--max-model-len", "2000000"]).await;
    let mut stream = within(client.generate(request("r", 1_000_000))).await.unwrap();
    chunk(&mut stream).await;
    within(client.control(pause("abort"))).await.unwrap();
    assert_eq!(rest(&mut stream).await.1, Ok("abort".to_owned()));
    within(client.control(resume())).await.unwrap();
    finish(&mut within(client.generate(request("after", 3))).await.unwrap()).await;
}

/// 0.1.1 engines drop control operations without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_told_in_time() {
    let mut tuning = Tuning::default();
    tuning.control_timeout = Duration::from_millis(400);
    let (client, _engines) = group(config(2), tuning, &[]).await;
    let start = Instant::now();
    let error = within(client.control(is_paused())).await.unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(400));
    assert!(matches!(&error, Error::Unavailable(why) if why.to_string().contains("engines [0, 1]")), "{error}");
    finish(&mut within(client.generate(request("after", 3))).await.unwrap()).await;
}

/// The late answer of a stopped rank is not taken for the answer to the next call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_answers_are_dropped() {
    let (client, engines) = group(config(2), Tuning::default(), &["--wire", "crate010"]).await;
    assert_eq!(within(client.control(is_paused())).await.unwrap().len(), 2);
    engines[1].signal("STOP");
    let error = within(client.control_within(is_paused(), Duration::from_millis(300))).await.unwrap_err();
    assert!(error.to_string().contains("engines [1]"), "only the silent one is named: {error}");
    within(client.control_within(pause("keep"), Duration::from_millis(300))).await.unwrap_err();
    engines[1].signal("CONT");
    // Were the late `false` counted here, the answers would not be both `true`.
    assert_eq!(paused(&within(client.control(is_paused())).await.unwrap()), [true; 2]);
}
