#![expect(clippy::unwrap_used, reason = "tests")]

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn candidates(in_flight: &[usize]) -> Vec<Candidate> {
    let one = |(id, in_flight): (usize, &usize)| {
        let identity = xxhash_rust::xxh3::xxh3_64(format!("backend-{id}").as_bytes());
        Candidate { id, identity, in_flight: *in_flight, weight: 1.0, share: 1.0 }
    };
    in_flight.iter().enumerate().map(one).collect()
}

fn policy(name: PolicyName) -> Policy {
    Policy::new(name, &Routing::default())
}

/// How often each candidate is chosen in `rounds` choices.
fn counts(policy: &Policy, candidates: &[Candidate], rounds: usize) -> Vec<usize> {
    let mut luck = SmallRng::seed_from_u64(1);
    let mut counts = vec![0; candidates.len()];
    for _ in 0..rounds {
        counts[policy.choose(candidates, &Asked::default(), luck.next_u64()).unwrap().at] += 1;
    }
    counts
}

const ALL: [PolicyName; 6] = [
    PolicyName::RoundRobin,
    PolicyName::LeastInFlight,
    PolicyName::PowerOfTwo,
    PolicyName::Weighted,
    PolicyName::Hash,
    PolicyName::PrefixAffinity,
];

#[test]
fn every_policy_chooses_where_there_is_a_choice() {
    for name in ALL {
        let policy = policy(name);
        assert_eq!(policy.choose(&[], &Asked::default(), 7), None, "{name:?}");
        assert_eq!(policy.choose(&candidates(&[9]), &Asked::default(), 7).unwrap().at, 0, "{name:?}");
        let counts = counts(&policy, &candidates(&[0; 4]), 4000);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{name:?} spreads {counts:?}");
    }
}

#[test]
fn slow_start_lets_little_through_at_first() {
    for name in ALL {
        let mut two = candidates(&[0, 0]);
        two[0].share = 0.1;
        let counts = counts(&policy(name), &two, 1000);
        assert!(counts[0] <= 150, "{name:?}: {counts:?}");
    }
}

#[test]
fn load_decides_where_it_should() {
    let uneven = candidates(&[5, 0, 7]);
    assert_eq!(counts(&policy(PolicyName::LeastInFlight), &uneven, 100), [0, 100, 0]);
    let of_two = counts(&policy(PolicyName::PowerOfTwo), &uneven, 3000);
    assert!(of_two[2] == 0 && (900..1100).contains(&of_two[0]), "{of_two:?}");
    assert_eq!(counts(&policy(PolicyName::RoundRobin), &uneven, 300), [100, 100, 100]);
}

#[test]
fn weights_give_smooth_shares() {
    let mut three = candidates(&[0, 0, 0]);
    three[0].weight = 5.0;
    let weighted = policy(PolicyName::Weighted);
    let order: Vec<usize> = (0..7).map(|_| weighted.choose(&three, &Asked::default(), 0).unwrap().at).collect();
    assert_eq!(order, [0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn a_session_stays_until_its_backend_is_full() {
    let hash = policy(PolicyName::Hash);
    let headers = HeaderMap::from_iter([(http::HeaderName::from_static("x-session-id"), "s-1".parse().unwrap())]);
    let asked = hash.read("m", &headers, b"{}");
    let by_field = hash.read("m", &HeaderMap::new(), br#"{"user":"\u0073-1"}"#);
    assert!(asked.session.is_some() && asked == by_field);
    let mut eight = candidates(&[1; 8]);
    let home = hash.choose(&eight, &asked, 1).unwrap();
    assert_eq!(hash.choose(&eight, &asked, 99).unwrap(), home);
    // Who joins or leaves moves only what it takes or had.
    let without: Vec<Candidate> = eight.iter().copied().filter(|other| other.id != (home.at + 1) % 8).collect();
    assert_eq!(without[hash.choose(&without, &asked, 5).unwrap().at].id, home.at);
    eight[home.at].in_flight = 9;
    let other = hash.choose(&eight, &asked, 1).unwrap();
    assert!(other.at != home.at && other.why == "hash_full");
    assert_eq!(hash.read("m", &HeaderMap::new(), br#"{"user":null}"#).session, None);
}

fn conversation(turns: &[&str]) -> Vec<u8> {
    let messages: Vec<_> = turns.iter().map(|text| serde_json::json!({"role": "user", "content": text})).collect();
    serde_json::json!({"model": "m", "temperature": 1, "messages": messages}).to_string().into_bytes()
}

#[test]
fn a_prompt_goes_where_its_beginning_was() {
    let affinity = policy(PolicyName::PrefixAffinity);
    let read = |turns: &[&str]| affinity.read("m", &HeaderMap::new(), &conversation(turns));
    let (long, next) = ("a long system prompt ".repeat(100), "and a question ".repeat(40));
    let mut eight = candidates(&[1; 8]);
    let first = affinity.choose(&eight, &read(&[&long]), 3).unwrap();
    assert_eq!(first.why, "prefix_new");
    for luck in 0..20 {
        let again = affinity.choose(&eight, &read(&[&long, &next]), luck << 32).unwrap();
        assert_eq!((again.at, again.why), (first.at, "prefix_match"));
    }
    // Another model's prompt, a salted one and another text are other prompts.
    let mut salted = br#"{"cache_salt":"x","#.to_vec();
    salted.extend_from_slice(&conversation(&[&long])[1..]);
    assert_ne!(affinity.read("m", &HeaderMap::new(), &salted).blocks[0], read(&[&long]).blocks[0]);
    assert_ne!(affinity.read("n", &HeaderMap::new(), &conversation(&[&long])).blocks, read(&[&long]).blocks);
    assert_eq!(affinity.choose(&eight, &read(&[&"else ".repeat(500)]), 3).unwrap().why, "prefix_new");
    // A full backend is left to its work.
    eight[first.at].in_flight = 12;
    let other = affinity.choose(&eight, &read(&[&long, &next]), 3).unwrap();
    assert!(other.at != first.at && other.why == "prefix_full");
}

#[test]
fn m3_what_prefix_affinity_remembers_is_bounded() {
    let routing = Routing { prefix_memory: 64 << 10, ..Routing::default() };
    let affinity = PrefixAffinity::new(&routing);
    let two = candidates(&[0, 0]);
    for number in 0..2000 {
        let asked = affinity.read("m", &conversation(&[&format!("text number {number} ").repeat(100)]));
        affinity.choose(&two, &asked, number);
    }
    assert!((1000..=2048).contains(&affinity.remembered()), "{}", affinity.remembered());
    let vast = affinity.read("m", &conversation(&[&"x".repeat(4 << 20)]));
    assert!(vast.blocks.len() <= 2048);
}
