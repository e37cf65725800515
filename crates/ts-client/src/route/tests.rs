//! Each policy by example, and its effect in a simulation of eight ranks.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, HashSet};

use ts_wire::SamplingParams;

use super::*;

const RANKS: usize = 8;

fn view(in_flight: usize, kv_active_pages: i64) -> RankView {
    RankView { serving: true, in_flight, kv_active_pages }
}

fn published(balance: LoadBalance) -> Policy {
    Policy::Published(balance)
}

const PREFIX: Policy = Policy::Added(Placement::PrefixAffinity { prefix_tokens: 64, load_bound: 1.25 });

/// What a policy did with a stream of requests.
#[derive(Debug)]
struct Outcome {
    /// What the fullest rank held over the even share, on average over the second half of the time.
    imbalance: f64,
    /// Requests whose prefix the rank had seen before.
    hits: f64,
}

/// Requests arrive one per tick; a request lasts a few ticks, one in ten of them thirty times as long. Its prompt
/// starts with one of `prefixes` texts, the popular ones more often.
fn simulate(policy: Policy, prefixes: u64) -> Outcome {
    const REQUESTS: u64 = 20_000;
    let mut ends: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut held = [0_usize; RANKS];
    let mut seen: Vec<HashSet<u64>> = vec![HashSet::new(); RANKS];
    let (mut excess, mut hits) = (0_f64, 0_u64);
    for tick in 0..REQUESTS {
        for rank in ends.remove(&tick).unwrap_or_default() {
            held[rank] -= 1;
        }
        let draw = scramble(tick);
        // The square makes low numbers popular.
        let uniform = (scramble(draw) % 1_000_003) as f64 / 1_000_003.0;
        let prefix = (uniform * uniform * prefixes as f64) as u64;
        let prompt: Vec<i32> = (0..80).map(|at| (scramble(prefix * 1_000 + at) % 50_000) as i32).collect();
        let views: Vec<RankView> = held.iter().map(|held| view(*held, *held as i64 * 10)).collect();
        let rank = choose(policy, &views, &prompt, tick as usize).unwrap();
        let lasts = if draw.is_multiple_of(10) { 600 } else { 20 } + draw % 7;
        held[rank] += 1;
        ends.entry(tick + lasts).or_default().push(rank);
        hits += u64::from(!seen[rank].insert(prefix));
        if tick >= REQUESTS / 2 {
            let even = held.iter().sum::<usize>() as f64 / RANKS as f64;
            excess += *held.iter().max().unwrap() as f64 / even;
        }
    }
    Outcome { imbalance: excess / (REQUESTS / 2) as f64, hits: hits as f64 / REQUESTS as f64 }
}

#[test]
fn policies_differ_in_balance() {
    let round_robin = simulate(published(LoadBalance::RoundRobin), 100).imbalance;
    let least = simulate(published(LoadBalance::LeastInFlight), 100).imbalance;
    let cache = simulate(published(LoadBalance::MinimumCacheUsage), 100).imbalance;
    let two = simulate(Policy::Added(Placement::PowerOfTwo), 100).imbalance;
    assert!(least < 1.1, "{least}");
    assert!(cache < 1.1, "{cache}");
    assert!(two < 1.2, "{two}");
    assert!(round_robin > two + 0.1 && round_robin > 1.25, "round robin does not see the long ones: {round_robin}");
}

#[test]
fn prefix_affinity_hits_the_cache_within_its_bound() {
    // More prefixes than a rank would see of its own accord in this time.
    let affine = simulate(PREFIX, 6_000);
    let blind = simulate(published(LoadBalance::LeastInFlight), 6_000);
    assert!(affine.hits > blind.hits + 0.15, "{affine:?} {blind:?}");
    assert!(affine.imbalance < 1.25 + 0.15, "{affine:?}");
    // One prefix for all: the bound spreads it over the ranks.
    let one = simulate(PREFIX, 1);
    assert!(one.imbalance < 1.25 + 0.15, "{one:?}");
}

#[test]
fn no_policy_picks_a_rank_that_does_not_serve() {
    let policies = [
        published(LoadBalance::RoundRobin),
        published(LoadBalance::LeastInFlight),
        published(LoadBalance::MinimumCacheUsage),
        Policy::Added(Placement::PowerOfTwo),
        PREFIX,
    ];
    for policy in policies {
        let mut ranks = vec![view(100, 100); RANKS];
        // The dead look the most attractive: nothing runs there.
        for dead in [1, 4, 5] {
            ranks[dead] = RankView { serving: false, in_flight: 0, kv_active_pages: 0 };
        }
        let mut picked = [0_usize; RANKS];
        for turn in 0..1_000 {
            let prompt: Vec<i32> = vec![turn as i32; 10];
            picked[choose(policy, &ranks, &prompt, turn).unwrap()] += 1;
        }
        for (rank, count) in picked.into_iter().enumerate() {
            assert_eq!(count == 0, [1, 4, 5].contains(&rank), "{policy:?}: {picked:?}");
        }
        for rank in &mut ranks {
            rank.serving = false;
        }
        assert_eq!(choose(policy, &ranks, &[], 0), None);
        assert_eq!(choose(policy, &[], &[], 0), None);
    }
}

#[test]
fn round_robin_spreads_over_those_that_are_left() {
    let mut ranks = vec![view(0, 0); 4];
    ranks[1].serving = false;
    let picks: Vec<_> =
        (0..6).filter_map(|turn| choose(published(LoadBalance::RoundRobin), &ranks, &[], turn)).collect();
    assert_eq!(picks, [0, 2, 3, 0, 2, 3]);
}

#[test]
fn the_loss_of_a_rank_moves_only_its_prefixes() {
    let mut ranks = vec![view(0, 0); RANKS];
    let homes = |ranks: &[RankView]| -> Vec<usize> {
        (0..500).map(|prefix| choose(PREFIX, ranks, &[prefix; 64], 0).unwrap()).collect()
    };
    let before = homes(&ranks);
    ranks[3].serving = false;
    for (was, is) in before.into_iter().zip(homes(&ranks)) {
        assert!(was == is || was == 3, "{was} -> {is}");
    }
}

/// R6.
#[test]
fn a_request_may_name_its_rank() {
    let request = |rank: Option<i64>, room: Option<u64>| TokenizedGenerateReqInput {
        data_parallel_rank: rank,
        bootstrap_room: room,
        ..TokenizedGenerateReqInput::new("r", SamplingParams::default())
    };
    let aggregated = Routing::Aggregated(LoadBalance::RoundRobin);
    assert_eq!(target(&request(None, None), aggregated, 4).unwrap(), Target::Any);
    assert_eq!(target(&request(Some(3), Some(1)), aggregated, 4).unwrap(), Target::Rank(3));
    let room = Routing::BootstrapRoom;
    assert_eq!(target(&request(None, Some(u64::MAX)), room, 4).unwrap(), Target::Rank(3));
    assert_eq!(target(&request(Some(2), Some(6)), room, 4).unwrap(), Target::Rank(2));
    for (routing, rank, room) in
        [(aggregated, Some(4), None), (aggregated, Some(-1), None), (room, None, None), (room, Some(1), Some(2))]
    {
        assert!(matches!(target(&request(rank, room), routing, 4), Err(Error::InvalidRequest(_))), "{rank:?} {room:?}");
    }
}
