//! The view of a batch accepts what the owned decoder accepts, and says the
//! same.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use proptest::prelude::*;
use sample::{Sample, Seed};
use ts_wire::output::{BatchView, RequestOutput};
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
    let mut viewed = view.rows();
    for expected in rows {
        same(&expected, &viewed.next().unwrap());
    }
    assert!(viewed.next().is_none());
    true
}

fn same(owned: &RequestOutput<'_>, view: &RowView<'_>) {
    assert_eq!(owned.rid, view.rid);
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
        let mut message = encode_frames(&BatchTokenIDOutSlim::sample(seed))[0].to_vec();
        for _ in 0..=seed.below(3) {
            let at = seed.below(message.len());
            message[at] = seed.next() as u8;
        }
        compare(&message);
        message.truncate(seed.below(message.len()));
        compare(&message);
    }
}

#[test]
fn most_samples_are_good_batches() {
    let good =
        (0..500u64).filter(|seed| compare(&encode_frames(&BatchTokenIDOutSlim::sample(&mut Seed(*seed)))[0])).count();
    assert!(good > 300, "only {good} of 500 samples were compared row by row");
}
