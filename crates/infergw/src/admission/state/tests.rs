//! Whatever comes, leaves and ends in whatever order: no limit is passed, no place stays empty that somebody waits for, and
//! nothing is left at the end.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::config::load::parse;

const SETTINGS: &str = "[admission]\nconcurrency = 3\nqueue = 4\ntenant_concurrency = 4\ntenant_queue = 5\n\
    [[models]]\nname = \"m0\"\nconcurrency = 1\n[[tenants]]\nname = \"t0\"\nconcurrency = 2\nweight = 3.0\n\
    tokens_per_minute = 100000\n[[tenants]]\nname = \"t1\"\npriority = 1\n";

#[derive(Debug, Clone)]
enum Event {
    Arrives {
        model: u8,
        tenant: u8,
        urgency: u8,
    },
    /// The one of this number, of those that run, ends.
    Ends(usize),
    /// The one of this number, of those that wait, goes away.
    GoesAway(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..3u8, 0..4u8, 0..8u8).prop_map(|(model, tenant, urgency)| Event::Arrives { model, tenant, urgency }),
        2 => any::<usize>().prop_map(Event::Ends),
        1 => any::<usize>().prop_map(Event::GoesAway),
    ]
}

#[derive(Default)]
struct Crowd {
    running: Vec<Arrival>,
    waiting: Vec<(Arrival, Place, oneshot::Receiver<()>)>,
}

impl Crowd {
    /// What has become of those that waited.
    fn look(&mut self, state: &mut State, all: &Settings, now: Instant) {
        for (arrival, place, mut granted) in std::mem::take(&mut self.waiting) {
            match granted.try_recv() {
                Ok(()) => self.running.push(arrival),
                Err(oneshot::error::TryRecvError::Empty) => self.waiting.push((arrival, place, granted)),
                Err(oneshot::error::TryRecvError::Closed) => {
                    assert_eq!(state.displaced(&arrival, all, now).reason, Refused::ModelQueueFull);
                }
            }
        }
    }

    fn check(&self, state: &State, all: &Settings) {
        let count = |of: &dyn Fn(&Arrival) -> bool| self.running.iter().filter(|arrival| of(arrival)).count();
        for (name, model) in &state.models {
            assert_eq!(model.running, count(&|arrival| arrival.model == *name));
            assert_eq!(model.lines.len(), self.waiting.iter().filter(|(arrival, ..)| arrival.model == *name).count());
            assert!(model.running <= all.model(name).concurrency && model.lines.len() <= all.model(name).queue);
            assert!(model.running + model.lines.len() > 0, "{name} is not forgotten");
        }
        for (name, tenant) in &state.tenants {
            assert_eq!(tenant.running, count(&|arrival| arrival.tenant == *name));
            assert_eq!(tenant.waiting, self.waiting.iter().filter(|(arrival, ..)| arrival.tenant == *name).count());
            assert_eq!(tenant.metrics.queued.get(), tenant.waiting as i64);
            assert!(tenant.running <= all.tenant(name).concurrency && tenant.waiting <= all.tenant(name).queue);
        }
        for (arrival, ..) in &self.waiting {
            let model_is_full = state.models[&arrival.model].running >= all.model(&arrival.model).concurrency;
            let tenant_is_full = state.tenants[&arrival.tenant].running >= all.tenant(&arrival.tenant).concurrency;
            assert!(model_is_full || tenant_is_full, "{arrival:?} waits for nothing");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn limits_hold_and_nothing_is_lost(events in prop::collection::vec(event(), 1..200)) {
        let all = Settings::new(&parse(Path::new("x"), SETTINGS).unwrap());
        let (mut state, mut crowd) = (State::new(Admissions::default()), Crowd::default());
        let now = Instant::now();
        let used = (10, 5);
        let end = |state: &mut State, arrival: Arrival| state.ends(&arrival, used, Duration::from_secs(1), (&all, now));
        for event in events {
            match event {
                Event::Arrives { model, tenant, urgency } => {
                    let arrival = Arrival {
                        model: Arc::from(format!("m{model}")),
                        tenant: Arc::from(format!("t{tenant}")),
                        urgency,
                        tokens: 12,
                    };
                    match state.arrive(&arrival, &all, now) {
                        Ok(Verdict::Runs) => crowd.running.push(arrival),
                        Ok(Verdict::Waits(place, granted)) => crowd.waiting.push((arrival, place, granted)),
                        Err(refusal) => prop_assert!(refusal.again >= 1),
                    }
                }
                Event::Ends(at) if !crowd.running.is_empty() => {
                    let arrival = crowd.running.swap_remove(at % crowd.running.len());
                    end(&mut state, arrival);
                }
                Event::GoesAway(at) if !crowd.waiting.is_empty() => {
                    let (arrival, place, _) = crowd.waiting.swap_remove(at % crowd.waiting.len());
                    state.gives_up(&arrival, place, &all, now);
                }
                Event::Ends(_) | Event::GoesAway(_) => {}
            }
            crowd.look(&mut state, &all, now);
            crowd.check(&state, &all);
        }
        while let Some(arrival) = crowd.running.pop() {
            end(&mut state, arrival);
            crowd.look(&mut state, &all, now);
            crowd.check(&state, &all);
        }
        prop_assert!(crowd.waiting.is_empty() && state.models.is_empty());
        if let Some(tenant) = state.tenants.get("t0") {
            // Exactly what was used has been taken out: what did not run came back.
            let booked = tenant.metrics.prompt.get() + tenant.metrics.generated.get();
            prop_assert_eq!(tenant.bucket.level(100_000, now), 100_000.0 - booked as f64);
        }
    }
}
