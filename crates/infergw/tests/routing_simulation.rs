//! The policies on simulated backends: the same seeded traffic for each, no I/O, no clock but its own.
//!
//! A backend batches continuously: each step computes a bounded number of prompt tokens and one token for each running
//! answer. It keeps a prefix cache of blocks, forgetting what was used longest ago. Traffic is of three kinds: conversations
//! that go on under shared system prompts, long documents that are asked about more than once, and short questions that share
//! nothing. `INFERGW_UPDATE=1` writes the table into docs/routing.md.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::path::Path;

use http::HeaderMap;
use infergw::config::{PolicyName, Routing};
use infergw::pool::policy::{Candidate, Policy};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of text for a token.
const TOKEN: usize = 4;
/// Tokens of a block of a backend's cache.
const PAGE: usize = 64;
/// Blocks that a backend's cache holds: 200,000 tokens.
const PAGES: usize = 3125;
/// Seconds of a step, for itself, for each prompt token and for each running answer.
const STEP: (f64, f64, f64) = (0.008, 0.000_06, 0.000_15);
/// Prompt tokens of a step.
const CHUNK: usize = 2048;
/// Answers that run at once.
const SLOTS: usize = 64;

/// Something that arrives.
struct Job {
    at: f64,
    body: Vec<u8>,
    /// The prompt's pages, each standing for the text up to there, and its tokens.
    pages: Vec<u64>,
    tokens: usize,
    output: usize,
}

fn lognormal(random: &mut SmallRng, median: f64, sigma: f64) -> f64 {
    let (a, b): (f64, f64) = (random.random_range(1e-9..1.0), random.random());
    median * (sigma * (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()).exp()
}

fn exponential(random: &mut SmallRng, mean: f64) -> f64 {
    -mean * random.random_range(1e-9_f64..1.0).ln()
}

/// Words that stand nowhere else.
fn text(random: &mut SmallRng, tokens: f64) -> String {
    let tokens = tokens.clamp(4.0, 16_000.0) as usize;
    let mut text = String::with_capacity(tokens * TOKEN + 16);
    while text.len() < tokens * TOKEN {
        let _ = write!(text, "{:016x}", random.next_u64());
    }
    text
}

fn job(at: f64, session: u64, turns: &[String], output: f64) -> Job {
    let messages: Vec<_> = turns.iter().map(|turn| serde_json::json!({"role": "user", "content": turn})).collect();
    let body = serde_json::json!({"model": "m", "user": format!("{session:x}"), "messages": messages}).to_string();
    let prompt: String = turns.concat();
    let mut last = 0;
    let pages = prompt.as_bytes().chunks_exact(PAGE * TOKEN).map(|page| {
        last = xxh3_64_with_seed(page, last);
        last
    });
    let (pages, tokens) = (pages.collect(), prompt.len() / TOKEN);
    Job { at, body: body.into_bytes(), pages, tokens, output: output.clamp(1.0, 2000.0) as usize }
}

/// The traffic of `backends` backends for `seconds`, in the order of arrival.
fn traffic(backends: usize, seconds: f64) -> Vec<Job> {
    let mut random = SmallRng::seed_from_u64(20_260_601);
    let mut jobs = Vec::new();
    // System prompts: the first ones are in wide use, the last ones hardly.
    let prompts: Vec<String> = (0..2 * backends + 8)
        .map(|_| {
            let n = lognormal(&mut random, 900.0, 0.6);
            text(&mut random, n)
        })
        .collect();
    let mut start = 0.0;
    let mut session = 0;
    while start < seconds {
        start += exponential(&mut random, RATE / backends as f64);
        session += 1;
        let kind: f64 = random.random();
        if kind < 0.5 {
            let rank = (prompts.len() as f64).powf(random.random::<f64>()) as usize - 1;
            let mut turns = vec![prompts[rank.min(prompts.len() - 1)].clone()];
            let mut at = start;
            for _ in 0..1 + exponential(&mut random, 5.0) as usize {
                let (question, output) = (lognormal(&mut random, 80.0, 1.0), lognormal(&mut random, 180.0, 0.9));
                turns.push(text(&mut random, question));
                jobs.push(job(at, session, &turns, output));
                // Its answer is part of the next prompt.
                turns.push(text(&mut random, output));
                at += output * 0.02 + lognormal(&mut random, 12.0, 0.8);
            }
        } else if kind < 0.65 {
            let length = lognormal(&mut random, 5000.0, 0.5);
            let document = text(&mut random, length);
            let mut at = start;
            for _ in 0..1 + exponential(&mut random, 3.0) as usize {
                let turns = [document.clone(), text(&mut random, 40.0)];
                let output = lognormal(&mut random, 120.0, 0.8);
                jobs.push(job(at, session, &turns, output));
                at += lognormal(&mut random, 20.0, 0.8);
            }
        } else {
            let (question, output) = (lognormal(&mut random, 300.0, 1.1), lognormal(&mut random, 200.0, 1.1));
            jobs.push(job(start, session, &[text(&mut random, question)], output));
        }
    }
    jobs.retain(|job| job.at < seconds);
    jobs.sort_by(|a, b| a.at.total_cmp(&b.at));
    jobs
}

/// Mean seconds between two beginnings on one backend.
const RATE: f64 = 0.95;

/// One simulated backend.
#[derive(Default)]
struct Backend {
    now: f64,
    /// Prompts that are not computed yet: arrival, tokens that are left, output.
    waiting: VecDeque<(f64, usize, usize)>,
    /// Tokens that each running answer still lacks.
    running: Vec<usize>,
    cache: HashMap<u64, u64>,
    used: BinaryHeap<Reverse<(u64, u64)>>,
    clock: u64,
    firsts: Vec<f64>,
    /// How many times as long as usual its steps take.
    slowness: f64,
    load_seconds: f64,
}

impl Backend {
    fn in_flight(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Run until `time`.
    fn advance(&mut self, time: f64) {
        while self.now < time {
            if self.in_flight() == 0 {
                self.now = time;
                return;
            }
            let mut budget = CHUNK;
            let mut begun = Vec::new();
            while budget > 0 && self.running.len() + begun.len() < SLOTS {
                let Some((arrival, left, output)) = self.waiting.front_mut() else { break };
                let part = budget.min(*left);
                budget -= part;
                *left -= part;
                if *left > 0 {
                    break;
                }
                begun.push((*arrival, *output));
                self.waiting.pop_front();
            }
            let work = STEP.0 + (CHUNK - budget) as f64 * STEP.1 + self.running.len() as f64 * STEP.2;
            let took = work * self.slowness;
            self.load_seconds += took * self.in_flight() as f64;
            self.now += took;
            self.running.retain_mut(|left| {
                *left -= 1;
                *left > 0
            });
            for (arrival, output) in begun {
                self.firsts.push(self.now - arrival);
                if output > 1 {
                    self.running.push(output - 1);
                }
            }
        }
    }

    /// Take a job; gives the tokens that the cache had.
    fn take(&mut self, job: &Job) -> usize {
        let known = job.pages.iter().take_while(|page| self.cache.contains_key(page)).count();
        for page in &job.pages {
            self.clock += 1;
            self.cache.insert(*page, self.clock);
            self.used.push(Reverse((self.clock, *page)));
        }
        while self.cache.len() > PAGES {
            let Some(Reverse((clock, page))) = self.used.pop() else { break };
            if self.cache.get(&page) == Some(&clock) {
                self.cache.remove(&page);
            }
        }
        let cached = known * PAGE;
        self.waiting.push_back((job.at, (job.tokens - cached).max(1), job.output));
        cached
    }
}

/// What came out.
struct Outcome {
    /// The busiest backend's mean number of requests in flight, over the mean of all.
    imbalance: f64,
    /// Prompt tokens that a cache had.
    cached: f64,
    p50: f64,
    p99: f64,
}

fn simulate(jobs: &[Job], slowness: &[f64], choose: &mut dyn FnMut(&[Candidate], &Job, u64) -> usize) -> Outcome {
    let mut random = SmallRng::seed_from_u64(7);
    let backends = slowness.len();
    let mut all: Vec<Backend> =
        slowness.iter().map(|slowness| Backend { slowness: *slowness, ..Backend::default() }).collect();
    let identities: Vec<u64> = (0..backends).map(|id| xxh3_64(format!("backend-{id}").as_bytes())).collect();
    let (mut cached, mut tokens) = (0, 0);
    for job in jobs {
        for backend in &mut all {
            backend.advance(job.at);
        }
        let candidates: Vec<Candidate> = all
            .iter()
            .enumerate()
            .map(|(id, backend)| {
                let identity = identities[id];
                Candidate { id, identity, in_flight: backend.in_flight(), weight: 1.0, share: 1.0 }
            })
            .collect();
        let chosen = choose(&candidates, job, random.next_u64());
        cached += all[chosen].take(job);
        tokens += job.tokens;
    }
    for backend in &mut all {
        backend.advance(jobs.last().unwrap().at + 3600.0);
    }
    let mut firsts: Vec<f64> = all.iter().flat_map(|backend| backend.firsts.iter().copied()).collect();
    assert_eq!(firsts.len(), jobs.len(), "every job is answered once");
    firsts.sort_by(f64::total_cmp);
    let at = |part: f64| firsts[(firsts.len() as f64 * part) as usize];
    let mean = all.iter().map(|backend| backend.load_seconds).sum::<f64>() / backends as f64;
    let most = all.iter().map(|backend| backend.load_seconds).fold(0.0, f64::max);
    Outcome { imbalance: most / mean, cached: cached as f64 / tokens as f64, p50: at(0.5), p99: at(0.99) }
}

const POLICIES: [(&str, Option<PolicyName>); 7] = [
    ("random", None),
    ("round_robin", Some(PolicyName::RoundRobin)),
    ("weighted", Some(PolicyName::Weighted)),
    ("power_of_two", Some(PolicyName::PowerOfTwo)),
    ("least_in_flight", Some(PolicyName::LeastInFlight)),
    ("hash", Some(PolicyName::Hash)),
    ("prefix_affinity", Some(PolicyName::PrefixAffinity)),
];

fn run(jobs: &[Job], slowness: &[f64]) -> HashMap<&'static str, Outcome> {
    let outcome = |name: Option<PolicyName>| match name {
        None => simulate(jobs, slowness, &mut |candidates, _, luck| (luck % candidates.len() as u64) as usize),
        Some(name) => {
            let policy = Policy::new(name, &Routing::default());
            let headers = HeaderMap::new();
            simulate(jobs, slowness, &mut |candidates, job, luck| {
                let asked = policy.read("m", &headers, &job.body);
                policy.choose(candidates, &asked, luck).unwrap().at
            })
        }
    };
    POLICIES.into_iter().map(|(name, policy)| (name, outcome(policy))).collect()
}

fn table(title: &str, jobs: usize, outcomes: &HashMap<&'static str, Outcome>) -> String {
    let mut table = format!("{title}, {jobs} requests:\n\n");
    table += "| policy | imbalance | cache hits | TTFT p50 | TTFT p99 | p99 against random | against round robin |\n";
    table += "|---|---|---|---|---|---|---|\n";
    let (random, in_turn) = (outcomes["random"].p99, outcomes["round_robin"].p99);
    for (name, _) in POLICIES {
        let Outcome { imbalance, cached, p50, p99 } = outcomes[name];
        let _ = writeln!(
            table,
            "| `{name}` | {imbalance:.2} | {:.0} % | {:.0} ms | {:.0} ms | {:.2} | {:.2} |",
            cached * 100.0,
            p50 * 1000.0,
            p99 * 1000.0,
            p99 / random,
            p99 / in_turn
        );
    }
    table
}

/// Where the tables stand in docs/routing.md.
const MARKS: (&str, &str) = ("<!-- simulation -->\n", "<!-- end of simulation -->");

#[test]
fn the_policies_do_what_they_are_for() {
    let slow = [&[3.0][..], &[1.0; 7]].concat();
    let few = traffic(8, 240.0);
    // Long enough to be about warm caches: conversations go on for minutes.
    let many = traffic(64, 180.0);
    let runs = [
        ("8 backends", run(&few, &[1.0; 8]), few.len()),
        ("64 backends", run(&many, &[1.0; 64]), many.len()),
        ("8 backends, one of them three times as slow", run(&few, &slow), few.len()),
    ];
    let tables: Vec<String> = runs.iter().map(|(title, outcomes, jobs)| table(title, *jobs, outcomes)).collect();
    let tables = tables.join("\n");
    println!("{tables}");

    for (title, outcomes, _) in &runs[..2] {
        let of = |name| &outcomes[name];
        let (random, in_turn, affinity) = (of("random"), of("round_robin"), of("prefix_affinity"));
        assert!(affinity.cached > 1.6 * random.cached, "{title}: affinity finds what caches hold");
        assert!(affinity.cached > of("hash").cached, "{title}: system prompts are shared beyond a session");
        assert!(of("hash").cached > 1.4 * random.cached, "{title}: a session's beginning is where it was");
        assert!(affinity.p99 < 0.75 * random.p99 && affinity.p99 < 0.9 * in_turn.p99, "{title}");
        assert!(affinity.p50 < 0.6 * in_turn.p50, "{title}");
        for bounded in ["hash", "prefix_affinity", "power_of_two", "least_in_flight"] {
            assert!(of(bounded).imbalance < 1.25, "{title}: {bounded} keeps within its bound");
        }
        assert!(of("power_of_two").imbalance < in_turn.imbalance && in_turn.imbalance < random.imbalance, "{title}");
        assert!(of("power_of_two").p99 < random.p99, "{title}");
    }
    let with_slow = &runs[2].1;
    for aware in ["power_of_two", "least_in_flight", "hash", "prefix_affinity"] {
        let (own, in_turn) = (with_slow[aware].p99, with_slow["round_robin"].p99);
        assert!(own < 0.5 * in_turn, "{aware} goes round a slow backend: {own} against {in_turn}");
    }

    let file = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/routing.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(MARKS.0).unwrap();
    let (kept, after) = rest.split_once(MARKS.1).unwrap();
    if std::env::var_os("INFERGW_UPDATE").is_some() {
        std::fs::write(&file, format!("{before}{}{tables}{}{after}", MARKS.0, MARKS.1)).unwrap();
    } else {
        assert!(
            kept == tables,
            "docs/routing.md has other figures: run this test with INFERGW_UPDATE=1, and commit the file"
        );
    }
}
