//! Random lives of a group against what must hold in all of them, and the single rules by example.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const RANKS: usize = 3;
const SILENCE: Duration = Duration::from_secs(10);

fn rules(rank_loss: RankLoss) -> Rules {
    Rules {
        first_index: 4,
        ranks: RANKS,
        rank_loss,
        limits: Limits { silence: SILENCE, ping_after: Duration::from_secs(2) },
        sentinel_grace: Duration::from_secs(5),
        check_gaps: true,
        adopt: None,
    }
}

fn registration(rank: usize) -> EngineCoreReadyResponse {
    EngineCoreReadyResponse {
        data_parallel_rank: rank as i64,
        data_parallel_size: RANKS as i64,
        ..EngineCoreReadyResponse::default()
    }
}

/// What can happen. Numbers are reduced to ranks and requests that exist.
#[derive(Debug, Clone)]
enum Happening {
    Restart(usize),
    Disconnect(usize),
    Reconnect(usize),
    Probe,
    Submit(usize),
    Row { request: usize, finish: bool, lost: bool },
    Abort(usize),
    Sentinel(Option<usize>),
    Nonsense(usize),
    Pass(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        1 => (0..RANKS).prop_map(Happening::Restart),
        1 => (0..RANKS).prop_map(Happening::Disconnect),
        2 => (0..RANKS).prop_map(Happening::Reconnect),
        2 => Just(Happening::Probe),
        6 => (0..RANKS).prop_map(Happening::Submit),
        8 => (any::<usize>(), prop::bool::weighted(0.2), prop::bool::weighted(0.05))
            .prop_map(|(request, finish, lost)| Happening::Row { request, finish, lost }),
        2 => any::<usize>().prop_map(Happening::Abort),
        1 => prop::option::of(0..RANKS).prop_map(Happening::Sentinel),
        1 => (0..RANKS).prop_map(Happening::Nonsense),
        4 => (1..4_000_u64).prop_map(Happening::Pass),
    ]
}

/// The engines as they really are, and what was told to the streams.
struct World {
    group: Group<usize>,
    now: Instant,
    connected: [bool; RANKS],
    life: [u32; RANKS],
    requests: Vec<Told>,
    /// Aborts that arrived: request and the life of the rank that got it.
    arrived: HashMap<usize, Vec<u32>>,
}

struct Told {
    rank: usize,
    life: u32,
    tokens: i64,
    ends: u32,
    finished: bool,
    /// Where it was in the table.
    key: Option<RequestKey>,
}

impl World {
    fn new(rank_loss: RankLoss) -> Self {
        let now = Instant::now();
        let mut world = Self {
            group: Group::new(rules(rank_loss), now),
            now,
            connected: [false; RANKS],
            life: [0; RANKS],
            requests: Vec::new(),
            arrived: HashMap::new(),
        };
        for rank in 0..RANKS {
            world.restart(rank);
        }
        world
    }

    fn restart(&mut self, rank: usize) {
        if std::mem::take(&mut self.connected[rank]) {
            self.group.disconnected(rank, self.now);
        }
        self.life[rank] += 1;
        self.group.hello(rank, self.now);
        self.act();
        self.group.confirm(rank);
        self.connected[rank] = true;
        assert_eq!(self.group.register(rank, registration(rank), self.now), Ok(()));
    }

    fn step(&mut self, happening: &Happening) {
        match happening {
            Happening::Restart(rank) => self.restart(*rank),
            Happening::Disconnect(rank) => {
                if std::mem::take(&mut self.connected[*rank]) {
                    self.group.disconnected(*rank, self.now);
                }
            }
            Happening::Reconnect(rank) => self.connected[*rank] = true,
            Happening::Probe => {
                for rank in (0..RANKS).filter(|rank| self.group.wants_probe(*rank)).collect::<Vec<_>>() {
                    match self.connected[rank] {
                        true => self.group.routable(rank, self.now),
                        false => self.group.unroutable(rank, self.now),
                    }
                    self.act();
                }
            }
            Happening::Submit(rank) => self.submit(*rank),
            Happening::Row { request, finish, lost } => self.row(*request, *finish, *lost),
            Happening::Abort(request) => {
                if let Some(request) = self.pick(*request)
                    && let Some(stream) = self.group.abort(&rid(request))
                {
                    self.requests[stream].ends += 1;
                }
            }
            Happening::Sentinel(rank) => self.group.shutdown_announced(*rank, self.now),
            Happening::Nonsense(rank) => self.group.talks_nonsense(*rank, self.now),
            Happening::Pass(milliseconds) => {
                self.now += Duration::from_millis(*milliseconds);
                self.group.tick(self.now);
            }
        }
        self.act();
    }

    fn pick(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.requests.len())
    }

    fn submit(&mut self, rank: usize) {
        let request = self.requests.len();
        let serves = self.group.serves(rank);
        let taken = self.group.submit(rid(request), rank, request, self.now);
        assert_eq!(taken.is_ok(), serves, "{taken:?}");
        if serves {
            assert_eq!(self.group.submit(rid(request), rank, request, self.now), Err(Refusal::Duplicate));
            self.requests.push(Told { rank, life: self.life[rank], tokens: 0, ends: 0, finished: false, key: None });
        }
    }

    fn row(&mut self, request: usize, finish: bool, lost: bool) {
        let Some(request) = self.pick(request) else { return };
        let told = &mut self.requests[request];
        told.tokens += 1 + i64::from(lost);
        let open = told.ends == 0;
        self.group.heard(told.rank, self.now);
        let found = self.group.find(&rid(request));
        let key = told.key.or(found);
        assert_eq!(found, key.filter(|_| open), "a place is another request's");
        let Some(key) = key else { return assert!(!open, "rows of an open request arrive") };
        told.key = Some(key);
        match self.group.row(key, 1, told.tokens, finish.then_some("stop")) {
            Row::Unknown => assert!(!open, "rows of an open request arrive"),
            Row::Running(stream) => assert!(open && !finish && !lost && *stream == request),
            Row::Last(stream) => {
                assert!(open && finish && !lost && stream == request);
                told.ends += 1;
                told.finished = true;
            }
            Row::Gap { stream, .. } => {
                assert!(open && lost && stream == request);
                told.ends += 1;
                told.finished = finish;
            }
        }
    }

    /// What the driver does, with the engines' real connections.
    fn act(&mut self) {
        loop {
            let actions = self.group.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::End { stream, .. } => self.requests[stream].ends += 1,
                    Action::Abort { rank, rids } if self.connected[rank] => {
                        for rid in rids {
                            self.arrived.entry(rid.parse().unwrap_or(usize::MAX)).or_default().push(self.life[rank]);
                        }
                    }
                    Action::Abort { rank, rids } => self.group.owe(rank, rids),
                    Action::Ping { .. } | Action::Lost { .. } | Action::Returned { .. } => {}
                }
            }
        }
    }

    fn check(&self) {
        let running = |rank: usize| self.group.requests.iter().filter(|request| request.rank == rank).count();
        for (rank, state) in self.group.ranks.iter().enumerate() {
            assert_eq!(state.running, running(rank), "the count of rank {rank}");
            assert!(state.phase == Phase::Live || running(rank) == 0, "nothing runs on rank {rank}: {state:?}");
        }
        for (request, told) in self.requests.iter().enumerate() {
            let open = self.group.requests.get(&rid(request)).is_some();
            assert_eq!(told.ends, u32::from(!open), "request {request} ends once");
        }
        let state = self.group.state();
        assert_eq!(state.serving, (0..RANKS).any(|rank| self.group.serves(rank)));
        assert_eq!(state.phase == GroupPhase::Ready, (0..RANKS).all(|rank| self.group.serves(rank)));
        for (request, lives) in &self.arrived {
            let told = &self.requests[*request];
            assert!(!told.finished, "what finished is not aborted: {request}");
            let same_life = lives.iter().filter(|life| **life == told.life).count();
            assert!(same_life <= 1, "request {request} is aborted {same_life} times");
        }
    }

    /// Let everything settle: all ranks are connected, and the time of all doubts is over.
    fn settle(&mut self) {
        for rank in 0..RANKS {
            self.step(&Happening::Reconnect(rank));
        }
        for _ in 0..10 {
            self.step(&Happening::Pass(2_000));
            self.step(&Happening::Probe);
            for rank in 0..RANKS {
                self.group.heard(rank, self.now);
            }
            self.act();
            self.check();
        }
    }
}

fn rid(request: usize) -> Rid {
    request.to_string().into()
}

fn lives(rank_loss: RankLoss, happenings: &[Happening]) {
    let mut world = World::new(rank_loss);
    world.check();
    for happening in happenings {
        world.step(happening);
        world.check();
    }
    world.settle();
    // What ended without a finish, on a process that is still there, was aborted there.
    for (request, told) in world.requests.iter().enumerate() {
        if told.ends == 1 && !told.finished && told.life == world.life[told.rank] {
            assert!(world.arrived.contains_key(&request), "request {request} runs on, orphaned");
        }
    }
    assert_eq!(world.group.state().phase, GroupPhase::Ready, "{:?}", world.group.state());
    world.group.close();
    world.act();
    assert!(world.requests.iter().all(|told| told.ends == 1));
    let open: HashSet<&Rid> = world.group.requests.iter().map(|request| &request.rid).collect();
    assert!(open.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_group_lives_by_its_rules(happenings in prop::collection::vec(happening(), 0..120)) {
        lives(RankLoss::Group, &happenings);
    }

    #[test]
    fn ranks_live_by_their_rules(happenings in prop::collection::vec(happening(), 0..120)) {
        lives(RankLoss::Rank, &happenings);
    }
}

#[test]
fn a_stale_engine_needs_a_restart() {
    let now = Instant::now();
    let mut group: Group<u32> = Group::new(rules(RankLoss::Group), now);
    group.routable(1, now);
    let state = group.state();
    assert_eq!((state.phase, state.ranks[1].status), (GroupPhase::Waiting, RankStatus::NeedsRestart));
    assert_eq!(state.trouble().unwrap_or_default().split(':').next(), Some("engine 5 needs a restart"));
    group.unroutable(1, now);
    assert_eq!(group.state().ranks[1].status, RankStatus::Waiting);
}

#[test]
fn the_handshake_waits_for_its_earliest_stage() {
    let now = Instant::now();
    let mut group: Group<u32> = Group::new(rules(RankLoss::Group), now);
    assert_eq!(group.pending(), Some(("HELLO", vec![4, 5, 6])));
    assert!(!group.confirm(0), "READY before HELLO");
    for rank in 0..RANKS {
        group.hello(rank, now);
    }
    assert_eq!(group.pending(), Some(("READY", vec![4, 5, 6])));
    for rank in 0..RANKS {
        assert!(group.confirm(rank));
    }
    assert_eq!(group.register(1, registration(2), now).map_err(|why| why.contains("rank 2 of 3")), Err(true));
    assert_eq!(group.register(0, registration(0), now), Ok(()));
    assert_eq!(group.pending(), Some(("registration", vec![5, 6])));
}

#[test]
fn an_unexplained_announcement_is_waited_for() {
    let now = Instant::now();
    let mut world = World::new(RankLoss::Group);
    world.group.shutdown_announced(None, now);
    assert!(!world.group.serves(0));
    assert_eq!(world.group.state().phase, GroupPhase::Lost);
    world.group.disconnected(2, now);
    world.act();
    assert_eq!(world.group.state().ranks[2].status, RankStatus::Lost, "the closed connection explains it");
    world.group.routable(2, now);
    assert!(world.group.serves(0), "{:?}", world.group.state());
}
