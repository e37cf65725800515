//! A simulated engine as a frontend sees it: handshake, ADD, ABORT, CONTROL, the end.
#![expect(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use support::{Answers, Frontend, PATIENCE, request};
use ts_engine::serve::{EngineConfig, EngineError, start};
use ts_wire::control::*;
use ts_wire::{EngineOutput, EngineRequest, Value};

fn simulated(text: &str) -> (Frontend, ts_engine::Engine) {
    let simulation = text.parse().unwrap();
    let (frontend, engine, _) = Frontend::with_engine(|address| EngineConfig::simulated(address, simulation));
    (frontend, engine)
}

#[test]
fn registers_with_its_identity_and_figures() {
    let simulation = "kv-pages=100,page-size=8,max-model-len=512,max-running=7,name=pretend".parse().unwrap();
    let (frontend, engine, registration) = Frontend::with_engine(|address| {
        let mut config = EngineConfig::simulated(address, simulation);
        (config.index, config.dp_rank, config.dp_size) = (0x0203, 3, 4);
        config
    });
    assert_eq!(frontend.identity(), [3, 2], "the index, little-endian");
    assert_eq!(registration.max_model_len, 512);
    assert_eq!((registration.num_gpu_blocks, registration.prefix_granularity), (100, 8));
    assert_eq!(registration.kv_cache_size_tokens, Some(800));
    assert_eq!((registration.data_parallel_rank, registration.data_parallel_size), (3, 4));
    assert_eq!((registration.max_num_seqs, registration.instance_id.as_str()), (7, "pretend"));
    assert!(registration.vllm_version.starts_with("tokenspeed-"));
    engine.stop().unwrap();
}

#[test]
fn streams_a_script_and_stops_at_its_end() {
    let (frontend, engine) = simulated("emit=5:6:7");
    let [answer] = &frontend.run(&[request("a", &[1, 2, 3], 10)])[..] else { panic!() };
    assert_eq!(answer.tokens, [5, 6, 7, 2]);
    assert_eq!(answer.rows, [1, 1, 1, 1]);
    assert_eq!(answer.finish.as_deref(), Some("stop"));
    assert_eq!(answer.detail("matched"), Some(&Value::from(2)));
    assert_eq!((answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens), (3, 4, 0));
    engine.stop().unwrap();
    assert_eq!(frontend.next(), EngineOutput::Dead);
}

#[test]
fn the_budget_comes_before_the_stop_token() {
    let (frontend, _engine) = simulated("emit=5:6:7");
    let [answer] = &frontend.run(&[request("a", &[1], 4)])[..] else { panic!() };
    assert_eq!(answer.tokens, [5, 6, 7, 2]);
    assert_eq!(answer.finish.as_deref(), Some("length"));
    assert_eq!(answer.detail("length"), Some(&Value::from(4)));
}

#[test]
fn without_stream_rows_come_at_the_first_token_every_fiftieth_and_the_end() {
    let (frontend, _engine) = simulated("emit=random");
    let mut quiet = request("a", &[1], 120);
    quiet.stream = false;
    assert_eq!(frontend.run(&[quiet])[0].rows, [1, 49, 50, 20]);
    let mut paced = request("b", &[1], 8);
    paced.sampling_params.stream_interval = Some(3);
    assert_eq!(frontend.run(&[paced])[0].rows, [1, 3, 3, 1], "tokens 1, 4, 7, end");
}

#[test]
fn several_tokens_come_in_a_row_and_end_at_the_stop() {
    let (frontend, _engine) = simulated("emit=5:6:7:8:9,tokens-per-step=4");
    let answer = &frontend.run(&[request("a", &[1], 100)])[0];
    assert_eq!(answer.tokens, [5, 6, 7, 8, 9, 2]);
    assert_eq!(answer.rows, [1, 4, 1]);
}

#[test]
fn an_abort_is_silent_and_frees_its_place() {
    let (frontend, _engine) = simulated("max-running=1,decode-base-us=2000,emit=random");
    let mut answers = Answers::default();
    frontend.add(&request("long", &[1], 30_000));
    while answers.0.is_empty() {
        answers.take(&frontend.next_batch());
    }
    frontend.add(&request("next", &[1], 3));
    frontend.abort("long");
    frontend.collect(&mut answers, &["next".to_owned()]);
    assert!(!answers.finished("long"), "no terminal row");
    let last = frontend.run(&[request("after", &[1], 1)]);
    assert_eq!(last[0].finish.as_deref(), Some("length"));
}

#[test]
fn an_abort_before_its_request_kills_it_once() {
    let (frontend, _engine) = simulated("emit=random");
    frontend.abort("early");
    frontend.add(&request("early", &[1], 2));
    // Messages are taken in order, so a row of the aborted one would come before this one's end.
    let mut answers = Answers::default();
    frontend.add(&request("other", &[1], 2));
    frontend.collect(&mut answers, &["other".to_owned()]);
    assert!(!answers.0.contains_key("early"));
    assert_eq!(frontend.run(&[request("early", &[1], 2)])[0].tokens.len(), 2, "the abort is spent");
}

#[test]
fn refusals_are_abort_rows_with_their_reason() {
    let (frontend, _engine) = simulated("vocab=100,max-model-len=64");
    let refused = |rid: &str, change: &dyn Fn(&mut ts_wire::TokenizedGenerateReqInput)| {
        let mut request = request(rid, &[1, 2, 3], 5);
        change(&mut request);
        let answer = frontend.run(&[request]).remove(0);
        assert_eq!(answer.finish.as_deref(), Some("abort"), "{rid}");
        assert_eq!(answer.detail("status_code"), Some(&Value::from(400)), "{rid}");
        assert!(answer.tokens.is_empty());
        match answer.detail("message") {
            Some(Value::Str(message)) => message.strip_prefix("Invalid request: ").unwrap().to_owned(),
            other => panic!("{rid}: {other:?}"),
        }
    };
    let long = vec![1; 60];
    assert_eq!(
        refused("long", &|r| r.input_ids = Some(long.clone())),
        "the prompt has 60 tokens; this engine admits at most 58"
    );
    assert_eq!(refused("own", &|r| r.validation_error = Some("no such thing".into())), "no such thing");
    assert!(refused("none", &|r| r.input_ids = None).contains("input_ids"));
    assert!(refused("id", &|r| r.input_ids = Some(vec![100])).contains("token id 100"));
    assert!(
        refused("topk", &|r| (r.sampling_params.temperature, r.sampling_params.top_k) = (1.0, 128))
            .starts_with("top_k")
    );
    assert!(refused("grammar", &|r| r.sampling_params.regex = Some("a".into())).contains("grammar"));
}

#[test]
fn what_cannot_be_decoded_is_dropped_and_the_engine_lives() {
    let (frontend, engine) = simulated("emit=5");
    let good = EngineRequest::Add(Box::new(request("x", &[1], 1))).to_frames();
    let deep = [vec![0x91; 100_000], vec![0xc0]].concat();
    let hostile: Vec<Vec<Vec<u8>>> = vec![
        vec![],
        vec![vec![]],
        vec![vec![0]],
        vec![vec![9], vec![0xc0]],
        vec![vec![0], vec![]],
        vec![vec![0], good[1][..good[1].len() / 2].to_vec()],
        vec![vec![0], deep.clone()],
        vec![vec![1], deep.clone()],
        vec![vec![2], deep],
        vec![vec![0], vec![0xdd, 0xff, 0xff, 0xff, 0xff]],
        vec![vec![1], vec![0xc1]],
        vec![vec![0, 0], good[1].to_vec()],
        vec![vec![0]; 5000],
    ];
    for frames in &hostile {
        frontend.send_frames(frames);
    }
    assert_eq!(frontend.run(&[request("y", &[1], 9)])[0].tokens, [5, 2]);
    assert!(engine.is_running());
}

#[test]
fn pauses_drain_freeze_and_resume() {
    let (frontend, _engine) = simulated("decode-base-us=1000,emit=random");
    let mut answers = Answers::default();
    let pause = |mode: &str| {
        ControlRequest::PauseScheduler(PauseSchedulerReqInput {
            rid: None,
            http_worker_ipc: None,
            mode: mode.to_owned(),
        })
    };
    let resume = || ControlRequest::ResumeScheduler(ResumeSchedulerReqInput { rid: None, http_worker_ipc: None });
    let is_paused = |answers: &mut Answers| {
        let asked = IsSchedulerPausedReqInput { rid: None, http_worker_ipc: None };
        match frontend.control(ControlRequest::IsSchedulerPaused(asked), answers) {
            ControlOutput::IsSchedulerPaused(reply) => reply.is_paused,
            other => panic!("{other:?}"),
        }
    };
    let paused = |reply: ControlOutput| match reply {
        ControlOutput::PauseScheduler(reply) => (reply.success, reply.message),
        other => panic!("{other:?}"),
    };

    // Each request has to run before the pause: one that still waits is no part of the drain.
    let run = |rid: &str, max_new: i64, answers: &mut Answers| {
        frontend.add(&request(rid, &[1], max_new));
        while !answers.0.contains_key(rid) {
            answers.take(&frontend.next_batch());
        }
    };
    run("a", 50, &mut answers);
    assert_eq!(paused(frontend.control(pause("wait"), &mut answers)), (true, String::new()));
    assert!(answers.finished("a"), "the reply comes behind the last row");
    assert!(is_paused(&mut answers));
    frontend.add(&request("b", &[1], 5));
    assert!(is_paused(&mut answers));
    assert!(!answers.0.contains_key("b"), "nothing starts while it is paused");
    assert!(matches!(frontend.control(resume(), &mut answers), ControlOutput::ResumeScheduler(reply) if reply.success));
    frontend.collect(&mut answers, &["b".to_owned()]);

    run("c", 30_000, &mut answers);
    assert_eq!(paused(frontend.control(pause("keep"), &mut answers)), (true, String::new()));
    assert_eq!(frontend.next_within(Duration::from_millis(200)), None, "everything stands still");
    frontend.control(resume(), &mut answers);
    assert_eq!(paused(frontend.control(pause("abort"), &mut answers)), (true, String::new()));
    assert_eq!(answers.0["c"].detail("message"), Some(&Value::from("Aborted by pause")));
    frontend.control(resume(), &mut answers);

    run("d", 30_000, &mut answers);
    frontend.send(&EngineRequest::Control(Box::new(pause("wait"))));
    frontend.send(&EngineRequest::Control(Box::new(resume())));
    let failed = paused(frontend.next_reply(&mut answers));
    assert_eq!(failed, (false, "resumed before pause drained".to_owned()));
    assert!(matches!(frontend.next_reply(&mut answers), ControlOutput::ResumeScheduler(reply) if reply.success));
}

#[test]
fn a_flush_forgets_prefixes_and_load_is_reported() {
    let (frontend, _engine) = simulated("page-size=4,kv-pages=64,emit=5:6:7");
    let prompt: Vec<i32> = (10..30).collect();
    let cached = |rid: &str| frontend.run(&[request(rid, &prompt, 2)])[0].cached_tokens;
    assert_eq!(cached("a"), 0);
    assert_eq!(cached("b"), 16, "whole pages, but never the last token");
    let mut answers = Answers::default();
    let flush = ControlRequest::FlushCache(FlushCacheReqInput { rid: None, http_worker_ipc: None });
    assert!(matches!(frontend.control(flush, &mut answers), ControlOutput::FlushCache(reply) if reply.success));
    assert_eq!(cached("c"), 0);
    frontend.add(&request("d", &prompt, 1));
    let batch = frontend.next_batch();
    assert_eq!(batch.kv_total_pages, 64);
    assert_eq!((batch.num_running, batch.num_waiting, batch.kv_active_pages), (0, 0, 0), "after its last row");
}

#[test]
fn every_control_operation_is_answered_with_its_own_reply() {
    let (frontend, _engine) = simulated("emit=5");
    let (rid, http_worker_ipc) = (None, None);
    let requests = [
        ControlRequest::IsSleeping(IsSleepingReqInput { rid: None, http_worker_ipc: None }),
        ControlRequest::GetInternalState(GetInternalStateReq { rid: None, http_worker_ipc: None }),
        ControlRequest::RebalanceExperts(RebalanceExpertsReqInput { rid: None, http_worker_ipc: None }),
        ControlRequest::ReleaseMemoryOccupation(ReleaseMemoryOccupationReqInput {
            rid: None,
            http_worker_ipc: None,
            tags: None,
        }),
        ControlRequest::UpdateWeightFromDisk(UpdateWeightFromDiskReqInput {
            rid,
            http_worker_ipc,
            model_path: "/nowhere".into(),
            load_format: None,
            weight_version: None,
            flush_cache: true,
        }),
    ];
    for request in requests {
        let expected = request.reply_tag();
        let reply = frontend.control(request, &mut Answers::default());
        assert_eq!(reply.tag(), expected);
        if let ControlOutput::UpdateWeightFromDisk(reply) = reply {
            assert!(!reply.success);
            assert!(!reply.message.is_empty());
        }
    }
}

#[test]
fn logprobs_are_one_per_token_with_alternatives_and_the_prompt() {
    let (frontend, _engine) = simulated("emit=5:6:7,tokens-per-step=2");
    let mut asked = request("a", &[11, 12, 13], 3);
    (asked.return_logprob, asked.logprob_start_len, asked.top_logprobs_num) = (true, 0, 2);
    let answer = frontend.run(&[asked]).remove(0);
    assert_eq!(answer.logprobs, [-0.125, -0.25, -0.375]);
    assert_eq!(answer.logprob_ids, [5, 6, 7]);
    assert_eq!(answer.top[1], [(6, -0.25), (0, -0.75)]);
    assert_eq!(answer.prompt_ids, [11, 12, 13]);
    assert_eq!(answer.prompt_logprobs, [None, Some(-0.125), Some(-0.25)]);
    assert_eq!(answer.prompt_top.len(), 3);
    let mut last = request("b", &[11, 12, 13], 3);
    last.return_logprob = true;
    let answer = frontend.run(&[last]).remove(0);
    assert_eq!((answer.prompt_logprobs, answer.prompt_ids), (vec![None], vec![13]), "one entry with start -1");
    assert!(answer.top.is_empty() && answer.prompt_top.is_empty());
}

#[test]
fn the_cost_model_takes_its_time() {
    let (frontend, _engine) = simulated("prefill=10000,decode-base-us=2000,decode-per-request-us=1000,emit=random");
    let start = std::time::Instant::now();
    frontend.run(&[request("a", &vec![1; 1000], 50)]);
    // 100 ms of prefill, and 49 steps of 3 ms.
    assert!(start.elapsed() >= Duration::from_millis(240), "took {:?}", start.elapsed());
}

#[test]
fn a_handshake_that_fails_says_why() {
    let (frontend, address) = Frontend::listen();
    let mut config = EngineConfig::simulated(&address, Default::default());
    config.handshake_timeout = Duration::from_millis(200);
    let mut unanswered = start(config).unwrap();
    let error = unanswered.wait_serving(PATIENCE).unwrap_err();
    assert!(matches!(error, EngineError::HandshakeTimeout { .. }), "{error}");
    assert!(!unanswered.is_running());
    drop(frontend);

    let (frontend, address) = Frontend::listen();
    let mut misled = start(EngineConfig::simulated(&address, Default::default())).unwrap();
    let (identity, _) = frontend.receive_status();
    frontend.send_init(&identity, b"\x93nonsense");
    assert!(matches!(misled.wait_serving(PATIENCE), Err(EngineError::Init(_))));

    let (_frontend, address) = Frontend::listen();
    let mut stopped = start(EngineConfig::simulated(&address, Default::default())).unwrap();
    assert!(matches!(stopped.wait_serving(Duration::from_millis(10)), Err(EngineError::NotServing(_))));
    stopped.stopper().stop();
    assert!(matches!(stopped.wait_serving(PATIENCE), Err(EngineError::Stopped)));
}

#[test]
fn a_killed_engine_says_nothing() {
    let (frontend, engine) = simulated("emit=random,decode-base-us=1000");
    frontend.add(&request("a", &[1], 30_000));
    frontend.next_batch();
    engine.kill();
    while let Some(output) = frontend.next_within(Duration::from_millis(300)) {
        assert_ne!(output, EngineOutput::Dead);
    }
}
