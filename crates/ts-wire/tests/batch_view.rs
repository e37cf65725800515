//! The view of a batch accepts what the owned decoder accepts, and says the
//! same.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use proptest::prelude::*;
use sample::{Sample, Seed};
use ts_wire::output::{BatchView, KnownRids, RequestOutput};
use ts_wire::*;

/// Compare both readings of one message.
fn compare(message: &[u8]) -> bool {
    let owned = decode_bytes::<BatchTokenIDOutSlim>(message);
    let rows = owned.as_ref().ok().and_then(|batch| batch.requests().ok());
    let view = BatchView::parse(message);
    assert_eq!(rows.is_some(), view.is_ok(), "owned {owned:?}, view {view:?}");
    let (Some(rows), Ok(view), Ok(owned)) = (rows, view, &owned) else {
        return false;
    };
    assert_eq!(view.len(), owned.rids.as_ref().unwrap().len());
    let load = view.load();
    assert_eq!(load.engine_index, owned.engine_index);
    assert_eq!(load.num_running, owned.num_running);
    assert_eq!(load.num_waiting, owned.num_waiting);
    assert_eq!(load.kv_active_pages, owned.kv_active_pages);
    assert_eq!(load.kv_total_pages, owned.kv_total_pages);
    let mut known = KnownRids::default();
    known.keep(&view);
    let again = BatchView::parse_after(message, &known).unwrap();
    assert!(again.rids_known() && !view.rids_known());
    assert_eq!(again.len(), view.len());
    let (mut viewed, mut recognised) = (view.rows(), again.rows());
    for expected in rows {
        same(&expected, &viewed.next().unwrap());
        same(&expected, &recognised.next().unwrap());
    }
    assert!(viewed.next().is_none() && recognised.next().is_none());
    true
}

/// What is known of one batch changes nothing about what another one is taken for.
fn compare_after(first: &[u8], message: &[u8]) -> bool {
    let mut known = KnownRids::default();
    known.keep(&BatchView::parse(first).unwrap());
    let (alone, after) = (BatchView::parse(message), BatchView::parse_after(message, &known));
    assert_eq!(alone.as_ref().err().map(ToString::to_string), after.as_ref().err().map(ToString::to_string));
    let (Ok(alone), Ok(after)) = (alone, after) else { return false };
    assert_eq!(alone.len(), after.len());
    for (one, other) in alone.rows().zip(after.rows()) {
        assert_eq!(one.rid.as_str(), other.rid.as_str());
        assert!(one.output_ids.iter().eq(other.output_ids.iter()));
        assert_eq!(one.completion_tokens, other.completion_tokens);
    }
    after.rids_known()
}

fn same(owned: &RequestOutput<'_>, view: &RowView<'_>) {
    assert_eq!(owned.rid, view.rid.as_str());
    assert_eq!(owned.finish_reason, view.finish_reason);
    assert_eq!(owned.prompt_tokens, view.prompt_tokens);
    assert_eq!(owned.completion_tokens, view.completion_tokens);
    assert_eq!(owned.cached_tokens, view.cached_tokens);
    assert_eq!(owned.spec_verify_ct, view.spec_verify_ct());
    let mut ids = vec![-7];
    view.output_ids.append_to(&mut ids);
    assert_eq!(owned.output_ids, &ids[1..]);
    assert_eq!(owned.output_ids, view.output_ids.iter().collect::<Vec<_>>());
    assert_eq!(owned.output_ids.len(), view.output_ids.len());
    let mut logprobs = Vec::new();
    view.output_token_logprobs.append_to(&mut logprobs);
    // As text, in which a NaN equals itself.
    let text = |values: &dyn std::fmt::Debug| format!("{values:?}");
    assert_eq!(text(&owned.output_token_logprobs), text(&logprobs));
    assert_eq!(text(&logprobs), text(&view.output_token_logprobs.iter().collect::<Vec<_>>()));
    assert_eq!(text(&owned.accept_draft_tokens), text(&view.accept_draft_tokens()));
    assert_eq!(text(&owned.finish_details), text(&view.finish_details()));
    assert_eq!(text(&owned.input_token_logprobs), text(&view.input_token_logprobs()));
    assert_eq!(text(&owned.input_top_logprobs), text(&view.input_top_logprobs()));
    assert_eq!(text(&owned.output_top_logprobs), text(&view.output_top_logprobs()));
}

/// The elements of an encoded batch, to be cut or extended.
fn elements(batch: &BatchTokenIDOutSlim) -> Vec<Value> {
    let frames = encode_frames(batch);
    decode_bytes(&frames[0]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_view_says_what_the_owned_batch_says(seed: u64) {
        let batch = BatchTokenIDOutSlim::sample(&mut Seed(seed));
        compare(&encode_frames(&batch)[0]);
    }

    #[test]
    fn at_every_length_and_with_a_future_tail(seed: u64) {
        let mut elements = elements(&BatchTokenIDOutSlim::sample(&mut Seed(seed)));
        elements.push(Value::sample(&mut Seed(seed)));
        for len in 0..=elements.len() {
            compare(&encode_frames(&elements[..len].to_vec())[0]);
        }
    }

    #[test]
    fn with_a_foreign_value_in_any_place(seed: u64) {
        let seed = &mut Seed(seed);
        let mut elements = elements(&BatchTokenIDOutSlim::sample(seed));
        let at = seed.below(elements.len());
        elements[at] = Value::sample(seed);
        compare(&encode_frames(&elements)[0]);
    }

    #[test]
    fn with_bytes_changed_or_cut_off(seed: u64) {
        let seed = &mut Seed(seed);
        let batch = BatchTokenIDOutSlim::sample(seed);
        let first = encode_frames(&batch)[0].to_vec();
        let mut message = first.clone();
        prop_assume!(BatchView::parse(&first).is_ok());
        for _ in 0..=seed.below(3) {
            let at = seed.below(message.len());
            message[at] = seed.next() as u8;
        }
        compare(&message);
        compare_after(&first, &message);
        message.truncate(seed.below(message.len()));
        compare(&message);
        compare_after(&first, &message);
    }
}

/// The next step of an engine: the same requests, other tokens; then one of them is gone, then another has come.
#[test]
fn the_next_batch_has_the_same_rids() {
    let batch = |rids: &[&str], token: i32| {
        let rows = rids.len();
        encode_frames(&BatchTokenIDOutSlim {
            rids: Some(rids.iter().map(ToString::to_string).collect()),
            output_ids: vec![vec![token]; rows],
            finished_reasons: vec![String::new(); rows],
            prompt_tokens: vec![3; rows],
            completion_tokens: vec![i64::from(token); rows],
            cached_tokens: vec![0; rows],
            output_token_logprobs_val: vec![vec![]; rows],
            output_token_logprobs_idx: vec![vec![]; rows],
            ..BatchTokenIDOutSlim::default()
        })
        .remove(0)
    };
    let first = batch(&["a", "b\u{e9}", "c"], 1);
    assert!(compare_after(&first, &batch(&["a", "b\u{e9}", "c"], 70_000)));
    for other in [&["a", "b\u{e9}"][..], &["a", "b\u{e9}", "c", "d"], &["b\u{e9}", "a", "c"], &[]] {
        assert!(!compare_after(&first, &batch(other, 2)));
    }
}

#[test]
fn most_samples_are_good_batches() {
    let good =
        (0..500u64).filter(|seed| compare(&encode_frames(&BatchTokenIDOutSlim::sample(&mut Seed(*seed)))[0])).count();
    assert!(good > 300, "only {good} of 500 samples were compared row by row");
}
