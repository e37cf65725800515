use proptest::prelude::*;

use super::*;

fn plain() -> Sampling {
    Sampling {
        temperature: 1.0,
        top_p: 1.0,
        top_k: None,
        min_p: 0.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        repetition_penalty: 1.0,
        logit_bias: Vec::new(),
        seed: 0,
    }
}

const NOTHING: Context<'_> = Context { prompt: &[], generated: &[], barred: &[], allowed: None };

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// What top-k, top-p and min-p allow, by their definitions on the sorted whole.
fn allowed(logits: &[f32], sampling: &Sampling) -> Vec<usize> {
    let probabilities = softmax(logits, sampling.temperature);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    order.truncate(sampling.top_k.unwrap_or(usize::MAX));
    let total: f64 = order.iter().map(|index| probabilities[*index]).sum();
    let most = probabilities[order[0]];
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for index in order {
        // A hair of slack where the two ways of summing may differ.
        if sum >= sampling.top_p * total + 1e-9
            || (probabilities[index] < sampling.min_p * most - 1e-9 && !kept.is_empty())
        {
            break;
        }
        sum += probabilities[index];
        kept.push(index);
    }
    kept
}

proptest! {
    #[test]
    fn draws_stay_inside_what_is_allowed(
        logits in proptest::collection::vec(-8f32..8.0, 1..300),
        seed in any::<u64>(),
        temperature in 0.05f64..3.0,
        top_p in 0.01f64..=1.0,
        top_k in proptest::option::of(1usize..128),
        min_p in prop_oneof![Just(0.0), 0.0f64..=1.0],
    ) {
        let sampling = Sampling { temperature, top_p, top_k, min_p, seed, ..plain() };
        let token = choose(&mut logits.clone(), &sampling, NOTHING).map(|token| token as usize);
        prop_assert!(token.is_some_and(|token| allowed(&logits, &sampling).contains(&token)), "{token:?}");
        prop_assert_eq!(choose(&mut logits.clone(), &sampling, NOTHING).map(|token| token as usize), token);
    }

    #[test]
    fn barred_ids_and_strong_bias_decide(
        logits in proptest::collection::vec(-8f32..8.0, 3..50),
        seed in any::<u64>(),
    ) {
        let count = logits.len() as i32;
        let all_but_one: Vec<i32> = (0..count - 1).collect();
        let context = Context { barred: &all_but_one, ..NOTHING };
        prop_assert_eq!(choose(&mut logits.clone(), &Sampling { seed, ..plain() }, context), Some(count - 1));
        let biased = Sampling { seed, logit_bias: vec![(1, 100.0)], ..plain() };
        prop_assert_eq!(choose(&mut logits.clone(), &biased, NOTHING), Some(1));
    }

    #[test]
    fn logprobs_are_those_of_the_softmax(logits in proptest::collection::vec(-20f32..20.0, 2..200), top in 0usize..20) {
        let probabilities = softmax(&logits, 1.0);
        let scored = score(&logits, 1, top);
        prop_assert!((scored.logprob - probabilities[1].ln()).abs() < 1e-6);
        prop_assert_eq!(scored.top.len(), top.min(logits.len()));
        prop_assert!(scored.top.is_sorted_by(|a, b| a.1 >= b.1));
        for (id, logprob) in scored.top {
            prop_assert!((logprob - probabilities[id as usize].ln()).abs() < 1e-6);
        }
    }
}

#[test]
fn draws_follow_the_probabilities() {
    let logits = [1.0f32.ln(), 2.0f32.ln(), 5.0f32.ln()];
    let mut counts = [0; 3];
    for seed in 0..8000 {
        let token = choose(&mut logits.to_vec(), &Sampling { seed, ..plain() }, NOTHING);
        counts[token.unwrap_or(0) as usize] += 1;
    }
    for (count, expected) in counts.into_iter().zip([1000i32, 2000, 5000]) {
        assert!((count - expected).abs() < 200, "{counts:?}");
    }
}

#[test]
fn penalties_count_what_they_say() {
    let context = Context { prompt: &[0], generated: &[1, 1, 2], barred: &[], allowed: None };
    let penalised = |sampling: &Sampling| {
        let mut logits = [2.0f32, 2.0, -2.0, 2.0];
        penalise(&mut logits, sampling, context);
        logits
    };
    assert_eq!(penalised(&Sampling { frequency_penalty: 0.5, ..plain() }), [2.0, 1.0, -2.5, 2.0]);
    assert_eq!(penalised(&Sampling { presence_penalty: 0.5, ..plain() }), [2.0, 1.5, -2.5, 2.0]);
    assert_eq!(penalised(&Sampling { repetition_penalty: 2.0, ..plain() }), [1.0, 1.0, -4.0, 2.0], "the prompt too");
}

#[test]
fn what_is_no_number_is_no_token() {
    assert_eq!(choose(&mut [1.0, f32::NAN], &plain(), NOTHING), None);
    assert_eq!(choose(&mut [], &plain(), NOTHING), None);
    // Infinitely hot passes the engines' checks.
    assert_eq!(choose(&mut [1.0, 3.0], &Sampling { temperature: f64::INFINITY, ..plain() }, NOTHING), Some(1));
    assert_eq!(choose(&mut [1.0, 3.0], &Sampling { temperature: f64::NAN, ..plain() }, NOTHING), Some(1));
}
