//! Which token comes next: pure functions of the logits, the request's settings, and what was generated before.
//!
//! A draw depends on the request's seed and on the position only, never on its neighbours in the batch, so that equal
//! requests with equal seeds give equal answers whatever else runs.

use std::cmp::Ordering;

use crate::grammar::Allowed;

/// Sampling settings, validated and normalised.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sampling {
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    /// Number of candidates; `None` for all.
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: f64,
    pub(crate) frequency_penalty: f32,
    pub(crate) presence_penalty: f32,
    pub(crate) repetition_penalty: f32,
    /// Token ids and what is added to their logits.
    pub(crate) logit_bias: Vec<(usize, f32)>,
    pub(crate) seed: u64,
}

/// What has been said before the token to choose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) prompt: &'a [i32],
    pub(crate) generated: &'a [i32],
    /// Ids that may not be chosen yet.
    pub(crate) barred: &'a [i32],
    /// What a grammar allows; `None` without one.
    pub(crate) allowed: Option<&'a Allowed>,
}

/// Log-probabilities of one position under the model alone: before penalties, bias and temperature.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scored {
    /// Of the token that stands there.
    pub(crate) logprob: f64,
    /// The likeliest tokens, likeliest first, with their log-probabilities.
    pub(crate) top: Vec<(i32, f64)>,
}

/// Log-probabilities at one position: of `token`, and of the `top` likeliest.
pub(crate) fn score(logits: &[f32], token: i32, top: usize) -> Scored {
    let log_total = log_sum_exp(logits);
    let of = |index: usize| logits.get(index).map_or(f64::NEG_INFINITY, |logit| f64::from(*logit) - log_total);
    let top = ranked(logits, top).into_iter().map(|index| (index as i32, of(index))).collect();
    Scored { logprob: usize::try_from(token).map_or(f64::NEG_INFINITY, of), top }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = f64::from(maximum(logits));
    let total: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
    most + total.ln()
}

fn maximum(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Indices of the `count` largest values, largest first; the lower index first among equals.
fn ranked(values: &[f32], count: usize) -> Vec<usize> {
    if count == 0 || values.is_empty() {
        return Vec::new();
    }
    let order = |a: &usize, b: &usize| descending(values, *a, *b);
    let mut indices: Vec<usize> = (0..values.len()).collect();
    if count < indices.len() {
        indices.select_nth_unstable_by(count - 1, order);
        indices.truncate(count);
    }
    indices.sort_unstable_by(order);
    indices
}

fn descending(values: &[f32], a: usize, b: usize) -> Ordering {
    values[b].total_cmp(&values[a]).then(a.cmp(&b))
}

/// Chooses the next token. `logits` are changed in place by penalties and bias. `None` when no logit is a number.
pub(crate) fn choose(logits: &mut [f32], sampling: &Sampling, context: Context<'_>) -> Option<i32> {
    // One NaN spoils every sum over the vocabulary: the engines report it and end the request.
    if logits.iter().any(|logit| logit.is_nan()) || logits.is_empty() {
        return None;
    }
    penalise(logits, sampling, context);
    for (index, bias) in &sampling.logit_bias {
        if let Some(logit) = logits.get_mut(*index) {
            *logit += bias;
        }
    }
    let mut barred = context.barred;
    if let Some(allowed) = context.allowed {
        allowed.rule(logits);
        // An answer that is complete ends, however short.
        barred = if allowed.any_but(barred) { barred } else { &[] };
    }
    for id in barred {
        if let Some(logit) = usize::try_from(*id).ok().and_then(|id| logits.get_mut(id)) {
            *logit = f32::NEG_INFINITY;
        }
    }
    let index = if sampling.top_k == Some(1) {
        ranked(logits, 1).first().copied()
    } else {
        let draw = uniform(sampling.seed, context.generated.len() as u64);
        draw_from(logits, sampling, draw)
    };
    index.and_then(|index| i32::try_from(index).ok())
}

/// Frequency and presence count what was generated; repetition counts the prompt too, as its inventors have it.
fn penalise(logits: &mut [f32], sampling: &Sampling, context: Context<'_>) {
    let repetition = sampling.repetition_penalty.max(1e-3);
    if repetition != 1.0 {
        let mut seen: Vec<i32> = context.prompt.iter().chain(context.generated).copied().collect();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            if let Some(logit) = usize::try_from(id).ok().and_then(|id| logits.get_mut(id)) {
                *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            }
        }
    }
    if sampling.frequency_penalty == 0.0 && sampling.presence_penalty == 0.0 {
        return;
    }
    let mut generated = context.generated.to_vec();
    generated.sort_unstable();
    for run in generated.chunk_by(|a, b| a == b) {
        let logit = run.first().and_then(|id| usize::try_from(*id).ok()).and_then(|id| logits.get_mut(id));
        if let Some(logit) = logit {
            *logit -= sampling.frequency_penalty * run.len() as f32 + sampling.presence_penalty;
        }
    }
}

/// Draws an index: temperature, then top-k, top-p and min-p, each on what the one before has left.
fn draw_from(logits: &[f32], sampling: &Sampling, draw: f64) -> Option<usize> {
    let most = f64::from(maximum(logits));
    let weight = |index: usize| ((f64::from(logits[index]) - most) / sampling.temperature).exp();
    if !sampling.temperature.is_finite() || !most.is_finite() {
        // Infinitely hot, or a bias beyond all numbers: nothing left to weigh, the likeliest wins.
        return ranked(logits, 1).first().copied();
    }
    if sampling.top_k.is_none() && sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
        let weights: Vec<f64> = (0..logits.len()).map(weight).collect();
        return pick(&weights, draw);
    }
    // All weights in the order of their size are costly to have; a few are mostly enough.
    let total: f64 = match sampling.top_k {
        Some(_) => 0.0,
        None => (0..logits.len()).map(weight).sum(),
    };
    let mut count = sampling.top_k.unwrap_or(64).min(logits.len());
    loop {
        let candidates = ranked(logits, count);
        let mut weights: Vec<f64> = candidates.iter().map(|index| weight(*index)).collect();
        let total = if sampling.top_k.is_some() { weights.iter().sum() } else { total };
        if let Some(kept) = kept(&weights, total, sampling)
            .or((count == logits.len() || sampling.top_k.is_some()).then_some(weights.len()))
        {
            weights.truncate(kept);
            return pick(&weights, draw).and_then(|at| candidates.get(at).copied());
        }
        count = (count * 8).min(logits.len());
    }
}

/// How many of the sorted `weights` top-p and min-p keep; `None` when they reach beyond them.
fn kept(weights: &[f64], total: f64, sampling: &Sampling) -> Option<usize> {
    let nucleus = (sampling.top_p < 1.0)
        .then(|| {
            let mut sum = 0.0;
            weights.iter().position(|weight| {
                sum += weight;
                sum >= sampling.top_p * total
            })
        })
        .flatten()
        .map(|last| last + 1);
    // Relative to the likeliest, whose weight is 1.
    let floor = (sampling.min_p > 0.0).then(|| weights.iter().position(|weight| *weight < sampling.min_p)).flatten();
    match (nucleus, floor) {
        (Some(a), Some(b)) => Some(a.min(b.max(1))),
        (None, Some(b)) => Some(b.max(1)),
        (Some(a), None) => Some(a),
        (None, None) => None,
    }
}

/// The index in which `draw`, a number in [0, 1), falls when the weights are laid end to end.
fn pick(weights: &[f64], draw: f64) -> Option<usize> {
    let mut left = draw * weights.iter().sum::<f64>();
    let mut last = None;
    for (index, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        last = Some(index);
        left -= weight;
        if left < 0.0 {
            break;
        }
    }
    last
}

/// A number in [0, 1) for each seed and position, by the SplitMix64 mixing function.
pub(crate) fn uniform(seed: u64, position: u64) -> f64 {
    (mix(seed, position) >> 11) as f64 / (1u64 << 53) as f64
}

/// 64 well mixed bits for each seed and position.
pub(crate) fn mix(seed: u64, position: u64) -> u64 {
    splitmix(splitmix(seed) ^ position)
}

fn splitmix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
