//! Changes to the pool while it serves: each is checked whole, then made by one swap of the roster.
//!
//! Every source of backends says what it wants, and what it wanted before is remembered: only what is different between the two
//! is changed. A backend that somebody has drained or deleted by hand stays so while its source says the same.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::Pool;
use super::member::{Duty, Member};
use super::models::Models;
use super::retry::Budget;
use super::roster::{Origin, Roster, Seen};
use crate::backend::http::HttpBackend;
use crate::backend::{Backend, StartError};
use crate::config::{Config, Model, Retries, Routing, Upstream, check};
use crate::types::BackendKind;

/// Most backends in a pool: each is looked at for every request, and has metrics of its own.
const MOST: usize = 4096;

/// Why a change is not made. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Another source has a backend of this name.
    #[error("there is already a backend '{name}' (from {origin})")]
    Taken {
        /// The name.
        name: String,
        /// Who has named that one.
        origin: &'static str,
    },
    /// A setting is at fault.
    #[error(transparent)]
    Contradiction(#[from] check::Contradiction),
    /// It cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no backend of this name.
    #[error("there is no backend '{0}'")]
    Unknown(String),
    /// It is an engine group, whose sockets are bound for the gateway's life.
    #[error("'{0}' is an engine group: it can be drained, but leaves with the gateway only")]
    EngineGroup(String),
    /// There are too many.
    #[error("there would be more than {MOST} backends")]
    TooMany,
}

/// What a change has done, by the names of backends.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Changed {
    /// New ones.
    pub added: Vec<String>,
    /// Those whose address or key is another one now: requests that run on the old one finish there.
    pub replaced: Vec<String>,
    /// Those whose weight or models have changed.
    pub changed: Vec<String>,
    /// Those that get no more requests.
    pub removed: Vec<String>,
}

impl Changed {
    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What each source wants, and what else a change is compared with.
#[derive(Debug, Default)]
pub(super) struct Sources {
    wanted: HashMap<Origin, Vec<Wanted>>,
    /// Those that were taken out: they live while requests run on them.
    leaving: Vec<Weak<Member>>,
    models: Vec<Model>,
    routing: Routing,
    retries: Retries,
    begun: bool,
}

/// A backend as a source wants it.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    name: Arc<str>,
    upstream: Upstream,
}

/// A change that has been checked.
struct Plan {
    members: Vec<Arc<Member>>,
    wanted: Vec<Wanted>,
    leaves: Vec<Arc<Member>>,
    enters: Vec<Arc<Member>>,
    alters: Vec<(Arc<Member>, Upstream)>,
    done: Changed,
}

impl Pool {
    /// Make `[[backends]]`, `[[models]]`, `[routing]` and `[retries]` what `config` says.
    ///
    /// # Errors
    /// See [`ChangeError`]. `config` itself has been checked.
    pub fn reconfigure(&self, config: &Config) -> Result<Changed, ChangeError> {
        let mut sources = self.sources();
        let roster = self.roster.load_full();
        let plan = self.plan(&sources, &roster, &Origin::Config, &config.backends)?;
        let same = sources.models == config.models && sources.routing == config.routing;
        let models = match same && sources.begun {
            true => Arc::clone(&roster.models),
            false => Arc::new(Models::succeeding(Some(&roster.models), &config.models, &config.routing)),
        };
        let budget = match sources.retries == config.retries {
            true => Arc::clone(&roster.budget),
            false => Arc::new(Budget::new(&config.retries)),
        };
        sources.models.clone_from(&config.models);
        sources.routing.clone_from(&config.routing);
        sources.retries.clone_from(&config.retries);
        Ok(self.carry_out(&mut sources, Origin::Config, plan, (models, budget)))
    }

    /// Make the backends of one source what it says now.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn replace(&self, origin: &Origin, upstreams: &[Upstream]) -> Result<Changed, ChangeError> {
        self.replace_in(&mut self.sources(), origin, upstreams)
    }

    fn replace_in(
        &self,
        sources: &mut Sources,
        origin: &Origin,
        upstreams: &[Upstream],
    ) -> Result<Changed, ChangeError> {
        upstreams.iter().try_for_each(check::upstream)?;
        let roster = self.roster.load_full();
        let plan = self.plan(sources, &roster, origin, upstreams)?;
        let kept = (Arc::clone(&roster.models), Arc::clone(&roster.budget));
        Ok(self.carry_out(sources, origin.clone(), plan, kept))
    }

    /// Add one backend for as long as the gateway runs.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn add(&self, upstream: Upstream) -> Result<Seen, ChangeError> {
        let mut sources = self.sources();
        let roster = self.roster.load_full();
        if let Some(name) = &upstream.name
            && let Ok(member) = find(&roster, name)
        {
            return Err(ChangeError::Taken { name: name.clone(), origin: member.origin.as_str() });
        }
        let wanted = sources.wanted.entry(Origin::Admin).or_default();
        // One that was deleted may be added again.
        wanted.retain(|wanted| find(&roster, &wanted.name).is_ok());
        let named = |wanted: &Wanted| Upstream { name: Some(wanted.name.to_string()), ..wanted.upstream.clone() };
        let all: Vec<_> = wanted.iter().map(named).chain([upstream]).collect();
        let changed = self.replace_in(&mut sources, &Origin::Admin, &all)?;
        let name = changed.added.first().cloned().unwrap_or_default();
        Ok(find(&self.roster.load(), &name)?.seen(Instant::now()))
    }

    /// Take a backend out: running requests finish. Its source brings it back only by saying something else about it.
    ///
    /// # Errors
    /// [`ChangeError::Unknown`], [`ChangeError::EngineGroup`]
    pub fn remove(&self, name: &str) -> Result<Seen, ChangeError> {
        let mut sources = self.sources();
        let roster = self.roster.load_full();
        let member = find(&roster, name)?;
        if member.backend.kind() == BackendKind::Engine {
            return Err(ChangeError::EngineGroup(name.to_owned()));
        }
        let members = roster.members.iter().filter(|other| !Arc::ptr_eq(other, member)).cloned().collect();
        self.swap(members, (Arc::clone(&roster.models), Arc::clone(&roster.budget)));
        self.leave(&mut sources, member);
        tracing::info!(backend = name, "the backend was taken out");
        Ok(member.seen(Instant::now()))
    }

    /// Give a backend no new requests, or give it some again.
    ///
    /// # Errors
    /// [`ChangeError::Unknown`]
    pub fn set_draining(&self, name: &str, draining: bool) -> Result<Seen, ChangeError> {
        let _one_at_a_time = self.sources();
        let roster = self.roster.load();
        let member = find(&roster, name)?;
        member.set_duty(if draining { Duty::Draining } else { Duty::Serving });
        tracing::info!(backend = name, draining, "the backend's duty was changed");
        Ok(member.seen(Instant::now()))
    }

    /// All backends as operators see them, those that still finish requests included.
    pub fn seen(&self) -> Vec<Seen> {
        let now = Instant::now();
        let leaving: Vec<_> = self.sources().leaving.iter().filter_map(Weak::upgrade).collect();
        let leaving = leaving.iter().filter(|member| member.in_flight() > 0);
        self.roster.load().members.iter().chain(leaving).map(|member| member.seen(now)).collect()
    }

    /// What must be done for `origin` to have these backends; nothing has been done yet but that new ones were started.
    fn plan(
        &self,
        sources: &Sources,
        roster: &Roster,
        origin: &Origin,
        upstreams: &[Upstream],
    ) -> Result<Plan, ChangeError> {
        let none = Vec::new();
        let before = sources.wanted.get(origin).unwrap_or(&none);
        let others = roster.members.iter().filter(|member| member.origin != *origin);
        let taken: HashMap<&str, &Origin> = others.map(|member| (&*member.name, &member.origin)).collect();
        let wanted = named(origin, upstreams, before, &taken);
        let members = roster.members.clone();
        let mut plan =
            Plan { members, wanted, leaves: vec![], enters: vec![], alters: vec![], done: Changed::default() };
        let mut slots = Slots::new(roster, &sources.leaving);
        let mut names = HashSet::new();
        for wanted in &plan.wanted {
            if let Some(other) = taken.get(&*wanted.name) {
                return Err(ChangeError::Taken { name: wanted.name.to_string(), origin: other.as_str() });
            }
            if !names.insert(Arc::clone(&wanted.name)) {
                return Err(ChangeError::Taken { name: wanted.name.to_string(), origin: origin.as_str() });
            }
            let old = before.iter().find(|old| old.name == wanted.name);
            if old.is_some_and(|old| same(&old.upstream, &wanted.upstream)) {
                continue;
            }
            let at = plan.members.iter().position(|member| member.name == wanted.name);
            let at_hand = at.and_then(|at| plan.members.get_mut(at));
            let kept = old.is_some_and(|old| {
                (&old.upstream.url, &old.upstream.key) == (&wanted.upstream.url, &wanted.upstream.key)
            });
            match at_hand {
                Some(member) if kept => {
                    plan.alters.push((Arc::clone(member), wanted.upstream.clone()));
                    plan.done.changed.push(wanted.name.to_string());
                }
                at_hand => {
                    let new = Arc::new(self.member(origin, wanted, slots.next())?);
                    plan.enters.push(Arc::clone(&new));
                    match at_hand {
                        Some(member) => {
                            plan.leaves.push(std::mem::replace(member, new));
                            plan.done.replaced.push(wanted.name.to_string());
                        }
                        None => {
                            plan.members.push(new);
                            plan.done.added.push(wanted.name.to_string());
                        }
                    }
                }
            }
        }
        let gone = |member: &Arc<Member>| member.origin == *origin && !names.contains(&member.name);
        plan.leaves.extend(plan.members.extract_if(.., |member| gone(member)).inspect(|member| {
            plan.done.removed.push(member.name.to_string());
        }));
        if plan.members.len() > MOST {
            return Err(ChangeError::TooMany);
        }
        Ok(plan)
    }

    fn carry_out(
        &self,
        sources: &mut Sources,
        origin: Origin,
        plan: Plan,
        (models, budget): (Arc<Models>, Arc<Budget>),
    ) -> Changed {
        for (member, upstream) in plan.alters {
            member.set_weight(upstream.weight.unwrap_or(1.0));
            if let Backend::Http(backend) = &member.backend {
                backend.serve(upstream.models);
            }
        }
        if std::mem::replace(&mut sources.begun, true) {
            plan.enters.iter().for_each(|member| member.is_new());
        }
        self.swap(plan.members, (models, budget));
        // After the swap: no request that comes now finds neither the old one nor the new one.
        for member in &plan.leaves {
            self.leave(sources, member);
        }
        sources.wanted.insert(origin, plan.wanted);
        plan.done
    }

    fn swap(&self, members: Vec<Arc<Member>>, (models, budget): (Arc<Models>, Arc<Budget>)) {
        self.roster.store(Arc::new(Roster { members, models, budget }));
    }

    fn leave(&self, sources: &mut Sources, member: &Arc<Member>) {
        member.set_duty(Duty::Left);
        sources.leaving.retain(|other| other.strong_count() > 0);
        sources.leaving.push(Arc::downgrade(member));
    }

    fn member(&self, origin: &Origin, wanted: &Wanted, slot: usize) -> Result<Member, StartError> {
        // Its probe must not end with the worker that happens to serve the operator's request.
        let _runtime = self.runtime.enter();
        let backend = HttpBackend::start(&wanted.upstream, &self.timeouts, &self.limits)?;
        let metrics = self.metrics.backends.of(&wanted.name);
        let weight = wanted.upstream.weight.unwrap_or(1.0);
        let identity = (Arc::clone(&wanted.name), origin.clone(), slot);
        Ok(Member::new(identity, weight, Backend::Http(Box::new(backend)), self.breaker.clone(), metrics))
    }
}

fn find<'a>(roster: &'a Roster, name: &str) -> Result<&'a Arc<Member>, ChangeError> {
    let found = roster.members.iter().find(|member| *member.name == *name);
    found.ok_or_else(|| ChangeError::Unknown(name.to_owned()))
}

/// Whether two entries mean the same: their names do not count, they have been found already.
fn same(a: &Upstream, b: &Upstream) -> bool {
    Upstream { name: None, ..a.clone() } == Upstream { name: None, ..b.clone() }
}

/// A name for each: its own; else the one that this address had before; else the source's word and a free number, from its place on.
fn named(origin: &Origin, upstreams: &[Upstream], before: &[Wanted], taken: &HashMap<&str, &Origin>) -> Vec<Wanted> {
    let mut used: HashSet<Arc<str>> = upstreams.iter().filter_map(|u| u.name.as_deref().map(Arc::from)).collect();
    let known: Vec<Option<Arc<str>>> = upstreams
        .iter()
        .map(|upstream| match &upstream.name {
            Some(name) => Some(Arc::from(name.as_str())),
            None => {
                let mut old = before.iter().filter(|w| w.upstream.name.is_none() && w.upstream.url == upstream.url);
                old.find(|old| used.insert(Arc::clone(&old.name))).map(|old| Arc::clone(&old.name))
            }
        })
        .collect();
    let from_place = matches!(origin, Origin::Config);
    let mut number = 0;
    let names: Vec<Arc<str>> = known
        .into_iter()
        .enumerate()
        .map(|(place, known)| {
            known.unwrap_or_else(|| {
                number = if from_place { place } else { 0 };
                loop {
                    number += 1;
                    let name: Arc<str> = Arc::from(format!("{}-{number}", origin.prefix()));
                    if !taken.contains_key(&*name) && used.insert(Arc::clone(&name)) {
                        return name;
                    }
                }
            })
        })
        .collect();
    let both = names.into_iter().zip(upstreams);
    both.map(|(name, upstream)| Wanted { name, upstream: upstream.clone() }).collect()
}

/// The places that nobody has, the lowest first.
struct Slots {
    used: HashSet<usize>,
    next: usize,
}

impl Slots {
    fn new(roster: &Roster, leaving: &[Weak<Member>]) -> Self {
        let leaving: Vec<_> = leaving.iter().filter_map(Weak::upgrade).collect();
        Self { used: roster.members.iter().chain(&leaving).map(|member| member.slot).collect(), next: 0 }
    }

    fn next(&mut self) -> usize {
        while self.used.contains(&self.next) {
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }
}
