//! The scheduler against a model that remembers what it wrote where, so that any wrong page shows.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ts_wire::{EngineOutput, EngineRequest, SamplingParams, TokenizedGenerateReqInput};

use super::*;
use crate::model::ModelError;
use crate::sample::mix;

const VOCAB: usize = 50;

/// Its next token depends on all tokens before it. Every position's slot holds a digest of the tokens up to it; a step
/// checks all slots that it reads.
struct Digesting {
    spec: ModelSpec,
    slots: BTreeMap<(u32, usize), u64>,
}

fn digests(tokens: &[i32]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(0, |digest, token| {
        *digest = mix(*digest, *token as u64);
        Some(*digest)
    })
}

fn logits(digest: u64) -> impl Iterator<Item = f32> {
    (0..VOCAB).map(move |id| (mix(digest, id as u64) % 1000) as f32 / 100.0)
}

impl Model for Digesting {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn step(&mut self, work: &[Work<'_>], out: &mut StepOutput) -> Result<Duration, ModelError> {
        out.clear();
        let mut computed = 0;
        for work in work {
            let size = self.spec.page_size;
            let mut rows = 0;
            for (position, digest) in digests(work.tokens).enumerate().take(work.compute.end) {
                let slot = (work.pages[position / size], position % size);
                if position < work.compute.start {
                    assert_eq!(self.slots.get(&slot), Some(&digest), "position {position} was not computed for this");
                } else {
                    self.slots.insert(slot, digest);
                    computed += 1;
                    if position >= work.logits_from {
                        out.logits.extend(logits(digest));
                        rows += 1;
                    }
                }
            }
            let first = out.logits.len() / VOCAB - rows;
            out.made.push(Made::Logits(first..first + rows));
        }
        let most = self.spec.max_batched_tokens.max(work.len()) + self.spec.page_size;
        assert!(computed <= most, "{computed} tokens in a step");
        Ok(Duration::ZERO)
    }
}

fn scheduler(kv_pages: usize, page_size: usize, max_batched_tokens: usize) -> Scheduler {
    let spec = ModelSpec {
        name: "digesting".into(),
        vocab: VOCAB,
        max_model_len: 64,
        eos: vec![2],
        dtype: "float32",
        max_running: 4,
        kv_pages,
        page_size,
        max_batched_tokens,
    };
    Scheduler::new(Box::new(Digesting { spec, slots: BTreeMap::new() }), 0)
}

fn add(rid: &str, prompt: &[i32], max_new: i64) -> EngineRequest {
    let params = SamplingParams { temperature: 0.0, max_new_tokens: Some(max_new), ..SamplingParams::default() };
    let mut request = TokenizedGenerateReqInput::new(rid, params);
    request.input_ids = Some(prompt.to_vec());
    request.stream = true;
    EngineRequest::Add(Box::new(request))
}

/// What a request must generate, whatever happens around it.
fn expected(prompt: &[i32], max_new: usize) -> (Vec<i32>, &'static str) {
    let mut tokens = prompt.to_vec();
    loop {
        let generated = tokens.len() - prompt.len();
        if generated >= max_new {
            return (tokens.split_off(prompt.len()), "length");
        }
        if generated > 0 && tokens.last() == Some(&2) {
            return (tokens.split_off(prompt.len()), "stop");
        }
        let last = digests(&tokens).last().unwrap();
        let values: Vec<f32> = logits(last).collect();
        let best = (0..VOCAB).max_by(|a, b| values[*a].total_cmp(&values[*b]).then(b.cmp(a))).unwrap();
        tokens.push(best as i32);
    }
}

/// Answers by id: tokens and the finish, when there is one.
type Answers = BTreeMap<String, (Vec<i32>, Option<String>)>;

fn collect(scheduler: &mut Scheduler, answers: &mut Answers) {
    while let Some(output) = scheduler.take_output() {
        let EngineOutput::Batch(batch) = output else { panic!("{output:?}") };
        assert!(batch.kv_active_pages <= batch.kv_total_pages);
        for row in batch.requests().unwrap() {
            let answer = answers.entry(row.rid.to_owned()).or_default();
            assert_eq!(answer.1, None, "a row after the end of {}", row.rid);
            answer.0.extend(row.output_ids);
            answer.1 = row.finish_reason.map(str::to_owned);
        }
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// A prompt that starts as many others do, and its budget.
    Add {
        shared: usize,
        own: Vec<i32>,
        max_new: i64,
    },
    Abort(usize),
    Steps(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0usize..30, proptest::collection::vec(3..VOCAB as i32, 1..12), 0i64..20)
            .prop_map(|(shared, own, max_new)| Event::Add { shared, own, max_new }),
        1 => (0usize..12).prop_map(Event::Abort),
        3 => (1usize..6).prop_map(Event::Steps),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With so few pages that sequences are evicted all the time, every request that is not aborted gets exactly its
    /// answer, and all pages come back.
    #[test]
    fn answers_do_not_depend_on_company(
        events in proptest::collection::vec(event(), 1..40),
        pages in 16usize..40,
        page_size in 1usize..5,
        batched in 1usize..40,
    ) {
        // The largest request has to fit, alone.
        let pages = pages.max(64usize.div_ceil(page_size));
        let mut scheduler = scheduler(pages, page_size, batched);
        let (mut requests, mut aborted) = (Vec::new(), Vec::new());
        let mut answers = Answers::new();
        let now = Instant::now();
        for event in events {
            match event {
                Event::Add { shared, own, max_new } => {
                    let prompt: Vec<i32> = (0..shared as i32).map(|k| 3 + k % 40).chain(own).collect();
                    scheduler.receive(add(&format!("r{}", requests.len()), &prompt, max_new), now);
                    requests.push((prompt, max_new as usize));
                }
                Event::Abort(index) if index < requests.len() => {
                    scheduler.receive(EngineRequest::Abort(vec![format!("r{index}")]), now);
                    aborted.push(index);
                }
                Event::Abort(_) => {}
                Event::Steps(count) => (0..count).for_each(|_| { scheduler.step(); }),
            }
            collect(&mut scheduler, &mut answers);
        }
        let mut left = 20_000;
        while scheduler.has_work() {
            scheduler.step();
            collect(&mut scheduler, &mut answers);
            left -= 1;
            prop_assert!(left > 0, "the requests do not end");
        }
        for (index, (prompt, max_new)) in requests.iter().enumerate() {
            let (tokens, finish) = expected(prompt, *max_new);
            match answers.get(&format!("r{index}")) {
                Some((got, Some(reason))) => {
                    prop_assert_eq!(got, &tokens);
                    prop_assert_eq!(reason, finish);
                }
                Some((got, None)) => {
                    prop_assert!(aborted.contains(&index));
                    prop_assert!(tokens.starts_with(got));
                }
                None => prop_assert!(aborted.contains(&index)),
            }
        }
        prop_assert_eq!(scheduler.pages.active(), 0);
    }

    /// Nothing that decodes can stop the engine: whatever its values, a request ends or is refused.
    #[test]
    fn no_request_stops_the_engine(
        prompt in proptest::option::of(proptest::collection::vec(any::<i32>(), 0..80)),
        numbers in proptest::collection::vec(any::<f64>(), 6),
        counts in proptest::collection::vec(prop_oneof![any::<i64>(), -2i64..200], 9),
        bias in proptest::collection::vec(("[0-9a-z-]{0,4}", any::<f64>()), 0..4),
        flags in any::<[bool; 4]>(),
    ) {
        let mut scheduler = scheduler(20, 4, 16);
        let params = SamplingParams {
            max_new_tokens: flags[0].then_some(counts[0]),
            stop_token_ids: flags[1].then(|| counts.clone()),
            temperature: numbers[0],
            top_p: if flags[2] { 1.0 } else { numbers[1] },
            top_k: counts[1],
            min_p: if flags[2] { 0.0 } else { numbers[2] },
            frequency_penalty: if flags[2] { 0.5 } else { numbers[3] },
            presence_penalty: if flags[2] { 0.0 } else { numbers[4] },
            repetition_penalty: if flags[2] { 0.0 } else { numbers[5] },
            min_new_tokens: if flags[2] { 0 } else { counts[2] },
            logit_bias: flags[3].then_some(ts_wire::Dict(bias)),
            seed: flags[0].then_some(counts[3]),
            stream_interval: Some(counts[4]),
            is_normalized: flags[1],
            ..SamplingParams::default()
        };
        let mut request = TokenizedGenerateReqInput::new("r", params);
        request.input_ids = prompt;
        (request.stream, request.return_logprob) = (flags[0], flags[3]);
        (request.logprob_start_len, request.top_logprobs_num) = (counts[5] % 80, counts[6] % 30);
        scheduler.receive(EngineRequest::Add(Box::new(request)), Instant::now());
        let mut answers = Answers::new();
        for _ in 0..200 {
            scheduler.step();
            collect(&mut scheduler, &mut answers);
        }
        prop_assert!(answers.get("r").is_some_and(|(_, finish)| finish.is_some()));
    }
}

#[test]
fn a_prompt_does_not_hold_up_those_that_generate() {
    let mut scheduler = scheduler(64, 4, 8);
    let now = Instant::now();
    let EngineRequest::Add(mut first) = add("first", &[5], 40) else { panic!() };
    first.sampling_params.ignore_eos = true;
    scheduler.receive(EngineRequest::Add(first), now);
    scheduler.step();
    let mut answers = Answers::new();
    collect(&mut scheduler, &mut answers);
    scheduler.receive(add("long", &[7; 50], 5), now);
    // 50 tokens in steps of 8, of which the other takes one.
    for step in 0..7 {
        let before = answers["first"].0.len();
        scheduler.step();
        collect(&mut scheduler, &mut answers);
        assert_eq!(answers["first"].0.len(), before + 1, "step {step}");
    }
    assert!(!answers.contains_key("long"));
    scheduler.step();
    collect(&mut scheduler, &mut answers);
    assert_eq!(answers["long"].0.len(), 1);
}

#[test]
fn a_request_that_outgrows_the_cache_ends_with_a_capacity_abort() {
    let mut scheduler = scheduler(4, 4, 16);
    let mut greedy =
        TokenizedGenerateReqInput::new("r", SamplingParams { ignore_eos: true, ..SamplingParams::default() });
    greedy.input_ids = Some(vec![5; 10]);
    scheduler.receive(EngineRequest::Add(Box::new(greedy)), Instant::now());
    while scheduler.has_work() {
        scheduler.step();
    }
    let mut last = None;
    while let Some(output) = scheduler.take_output() {
        last = Some(output);
    }
    let Some(EngineOutput::Batch(batch)) = last else { panic!("{last:?}") };
    assert_eq!(batch.finished_reasons, ["abort"]);
    let details = batch.finish_reason_details[0].as_ref().unwrap();
    assert_eq!(details.get("err_type"), Some(&CAPACITY_ERROR.into()));
    assert_eq!(scheduler.pages.active(), 0);
}

#[test]
fn remembered_aborts_expire_and_are_bounded() {
    let mut memory = AbortMemory::default();
    let start = Instant::now();
    memory.remember("old".into(), start);
    assert!(!memory.spend("old", start + ABORT_MEMORY));
    for index in 0..MAX_REMEMBERED + 10 {
        memory.remember(format!("r{index}"), start);
    }
    memory.remember("x".repeat(MAX_REMEMBERED_BYTES + 1), start);
    assert!(memory.since.len() <= MAX_REMEMBERED && memory.order.len() <= MAX_REMEMBERED);
    assert!(!memory.spend("r0", start), "the oldest made room");
    assert!(memory.spend(&format!("r{}", MAX_REMEMBERED + 9), start));
}
