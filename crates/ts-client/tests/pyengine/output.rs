//! Output that is malformed, short, of the future; readers that are slow.

use std::time::Duration;

use ts_client::{EndCause, GroupPhase, RankStatus, Tuning};

use super::{chunk, config, finish, group, is, reaches, request, rest, until, within};

/// Z4: each kind is dropped and counted, and nothing else happens.
async fn survives(kind: &str) {
    let args = ["--malformed-kind", kind, "--fault", "malformed-every=5"];
    let (client, engines) = group(config(1), Tuning::default(), &args).await;
    let mut stream = within(client.generate(request("r", 40))).await.unwrap();
    assert_eq!(finish(&mut stream).await, (1..=40).collect::<Vec<_>>(), "{kind}");
    until("all were injected", || engines[0].count("injected") == 8).await;
    let malformed = || client.stats()[0].malformed;
    // A surplus frame is no fault, and that batch is for nobody here.
    if kind == "two-frames" {
        assert_eq!(malformed(), 0);
    } else {
        until("all are counted", || malformed() == 8).await;
    }
    assert_eq!(client.state().phase, GroupPhase::Ready);
}

macro_rules! malformed {
    ($($test:ident: $kind:literal),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            survives($kind).await;
        }
    )*};
}

malformed! {
    garbage: "garbage", truncated: "truncated", wrong_tag: "wrong-tag", empty: "empty", trailing: "trailing",
    ragged: "ragged", nil_rids: "nil-rids", map: "map", unknown_control: "unknown-control", two_frames: "two-frames",
    float_id: "float-id", huge_array: "huge-array",
}

/// Z4: a run of them fails the rank's requests, and sense brings it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_bad_frames_fails_the_rank() {
    let mut tuning = Tuning::default();
    tuning.ping_after = Duration::from_millis(300);
    let args = ["--ttft-ms", "600000", "--malformed-kind", "garbage"];
    let (client, engines) = group(config(1), tuning, &args).await;
    let mut stream = within(client.generate(request("r", 5))).await.unwrap();
    let nonsense = async {
        loop {
            engines[0].signal("USR1");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let end = tokio::select! {
        end = rest(&mut stream) => end.1.unwrap_err(),
        () = nonsense => unreachable!(),
    };
    assert!(end.contains("does not decode"), "{end}");
    assert_eq!(stream.end_cause(), Some(EndCause::BadOutput { engine_index: 0 }));
    assert_eq!(client.in_flight(), [0]);
    reaches(&client, "its sign of life is heard", is(GroupPhase::Ready)).await;
}

/// A batch cut to its first columns, and one from the future.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_lengths_of_batches_are_read() {
    for fault in ["short-tail=9", "short-tail=10", "extra-tail", "dup-finish", "wrong-index", "register-twice"] {
        let (client, _engines) = group(config(1), Tuning::default(), &["--fault", fault]).await;
        let mut stream = within(client.generate(request("r", 10))).await.unwrap();
        assert_eq!(finish(&mut stream).await, (1..=10).collect::<Vec<_>>(), "{fault}");
        assert_eq!(client.state().ranks[0].status, RankStatus::Ready, "{fault}");
        assert_eq!(client.stats()[0].malformed, 0, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_for_nobody_are_ignored() {
    let (client, _engines) = group(config(1), Tuning::default(), &["--fault", "unknown-rid-every=2"]).await;
    let mut stream = within(client.generate(request("r", 20))).await.unwrap();
    assert_eq!(finish(&mut stream).await.len(), 20);
}

/// A tokenless abort from the engine is the stream's last chunk, with the reason where the engine sends it (R8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_by_the_engine_is_told() {
    let (client, _engines) = group(config(1), Tuning::default(), &["--wire", "crate010"]).await;
    let mut refused = request("r", 5);
    refused.sampling_params.top_p = 7.0;
    let mut stream = within(client.generate(refused)).await.unwrap();
    let last = chunk(&mut stream).await;
    assert_eq!((last.finish_reason.as_deref(), last.output_ids.len()), (Some("abort"), 0));
    let details = last.finish_details.expect("this engine sends the reason");
    assert!(format!("{details:?}").contains("top_p"), "{details:?}");
    assert_eq!(stream.end_cause(), None, "the engine ended it, not the client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logprobs_stay_with_their_tokens() {
    let (client, _engines) = group(config(1), Tuning::default(), &["--wire", "crate010", "--chunk", "3"]).await;
    let mut asked = request("r", 10);
    asked.return_logprob = true;
    asked.logprob_start_len = 0;
    let mut stream = within(client.generate(asked)).await.unwrap();
    let (mut tokens, mut logprobs, mut prompt) = (Vec::new(), Vec::new(), None);
    while let Some(chunk) = within(stream.next()).await {
        let chunk = chunk.unwrap();
        assert_eq!(chunk.output_ids.len(), chunk.output_token_logprobs.len());
        tokens.extend(chunk.output_ids);
        logprobs.extend(chunk.output_token_logprobs);
        prompt = prompt.or(chunk.input_token_logprobs);
    }
    let expected: Vec<f64> = tokens.iter().map(|token| -0.125 * f64::from(*token)).collect();
    assert_eq!(logprobs, expected);
    assert_eq!(prompt.expect("the prompt's, once"), (vec![None, Some(-0.125), Some(-0.25)], vec![11, 12, 13]));
}

/// A reader that does not read costs what its token ids cost, and is cancelled alone past the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_is_merged_then_cancelled() {
    let mut tuning = Tuning::default();
    tuning.stream_buffer_bytes = 8_000;
    let args = ["--max-model-len", "2000000", "--step-ms", "0.2", "--every-step"];
    let (client, engines) = group(config(1), tuning, &args).await;
    let mut slow = within(client.generate(request("slow", 1_000_000))).await.unwrap();
    let mut quick = within(client.generate(request("quick", 4_000))).await.unwrap();
    assert_eq!(finish(&mut quick).await.len(), 4_000);

    let end = rest(&mut slow).await;
    assert_eq!(end.0, Vec::<i32>::new(), "what was not read is freed");
    assert!(end.1.unwrap_err().contains("fell behind"));
    assert_eq!(slow.end_cause(), Some(EndCause::Overrun { limit: 8_000 }));
    until("it is aborted", || engines[0].aborts() == ["slow"]).await;

    // Within the limit, all that waits comes as one chunk.
    let mut merged = within(client.generate(request("merged", 1_500))).await.unwrap();
    until("it is done", || client.in_flight() == [0]).await;
    let all = chunk(&mut merged).await;
    assert_eq!((all.output_ids, all.finish_reason.as_deref()), ((1..=1_500).collect(), Some("length")));
}
