//! What no setting alone can be wrong about: the rules across settings.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::{Config, Upstream};

/// Settings that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Contradiction(pub String);

/// Longest name of a backend: it goes into headers and metrics.
const LONGEST_NAME: usize = 64;

impl Config {
    /// The names of all backends, in their order: HTTP backends, then engine groups. One that has none is named by its place.
    pub fn backend_names(&self) -> Vec<String> {
        let http = self.backends.iter().enumerate().map(|(at, backend)| match &backend.name {
            Some(name) => name.clone(),
            None => format!("http-{}", at + 1),
        });
        let engines = self.engines.iter().enumerate().map(|(at, group)| match &group.name {
            Some(name) => name.clone(),
            None => format!("engine-{}", at + 1),
        });
        http.chain(engines).collect()
    }

    /// Whether it names a backend, or somebody who may.
    pub fn has_backends(&self) -> bool {
        let named_outside = self.discovery.file.is_some() || !self.discovery.dns.is_empty();
        named_outside || !self.backends.is_empty() || !self.engines.is_empty()
    }

    /// Check the settings against each other.
    ///
    /// # Errors
    /// The first contradiction, as a sentence that names both sides.
    pub fn check(&self) -> Result<(), Contradiction> {
        let mut seen = HashMap::new();
        for (place, name) in self.backend_names().into_iter().enumerate() {
            backend_name(&name)?;
            if let Some(other) = seen.insert(name.clone(), place + 1) {
                return wrong(format!("backends {other} and {} are both named '{name}'", place + 1));
            }
        }
        self.backends.iter().try_for_each(upstream)?;
        self.engines.iter().try_for_each(|group| weight(group.weight))?;
        let mut words = HashSet::new();
        for dns in &self.discovery.dns {
            backend_name(&dns.name)?;
            upstream(&Upstream { weight: dns.weight, ..Upstream::default() })?;
            if !words.insert(&dns.name) {
                return wrong(format!("two names of discovery.dns have the name '{}'", dns.name));
            }
        }
        if !self.discovery.dns.is_empty() && self.discovery.interval < Duration::from_millis(100) {
            return wrong("discovery.interval must be 100ms or more".into());
        }
        if !(1.0..=1e6).contains(&self.routing.load_bound) {
            return wrong("routing.load_bound must be 1 or more".into());
        }
        if !(0.0..=1.0).contains(&self.retries.share) {
            return wrong("retries.share must be from 0 to 1".into());
        }
        if self.coalesce.resume && self.coalesce.linger.is_zero() {
            return wrong("coalesce.resume needs a time to come back in: coalesce.linger is off".into());
        }
        self.check_tenants()?;
        self.check_models()
    }

    fn check_tenants(&self) -> Result<(), Contradiction> {
        let mut names = HashSet::new();
        for tenant in &self.tenants {
            let name = &tenant.name;
            if !names.insert(name) {
                return wrong(format!("[[tenants]] has '{name}' twice"));
            }
            if tenant.weight.is_some_and(|weight| !(weight > 0.0 && weight <= 1e6)) {
                return wrong(format!("the weight of tenant '{name}' must be above 0, and at most 1000000"));
            }
            if tenant.priority.is_some_and(|urgency| urgency > 7) {
                return wrong(format!("the priority of tenant '{name}' must be from 0, the most urgent, to 7"));
            }
        }
        Ok(())
    }

    fn check_models(&self) -> Result<(), Contradiction> {
        let mut owners: HashMap<&str, &str> = HashMap::new();
        for model in &self.models {
            if model.name.is_empty() || model.aliases.iter().any(String::is_empty) {
                return wrong("a name in [[models]] is empty".into());
            }
            if owners.insert(&model.name, &model.name).is_some() {
                return wrong(format!("[[models]] has '{}' twice, as a name or an alias", model.name));
            }
            for alias in &model.aliases {
                if owners.insert(alias, &model.name).is_some() {
                    return wrong(format!("[[models]] has '{alias}' twice, as a name or an alias"));
                }
            }
        }
        for model in &self.models {
            for fallback in &model.fallbacks {
                let meant = owners.get(fallback.as_str()).copied().unwrap_or(fallback);
                if meant == model.name {
                    return wrong(format!("model '{}' is its own fallback", model.name));
                }
            }
        }
        Ok(())
    }
}

/// Check what a backend's entry says, wherever it stands.
///
/// # Errors
/// A name that cannot stand in headers and metrics, or a weight that is none.
pub fn upstream(upstream: &Upstream) -> Result<(), Contradiction> {
    upstream.name.as_deref().map_or(Ok(()), backend_name)?;
    weight(upstream.weight)
}

fn weight(weight: Option<f64>) -> Result<(), Contradiction> {
    if weight.is_some_and(|weight| !(weight > 0.0 && weight <= 1e6)) {
        return wrong("a backend's weight must be above 0, and at most 1000000".into());
    }
    Ok(())
}

pub(super) fn backend_name(name: &str) -> Result<(), Contradiction> {
    let sane = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(sane) {
        return wrong(format!(
            "'{name}' is no name for a backend: it has 1 to {LONGEST_NAME} of the characters A-Z a-z 0-9 - _ ."
        ));
    }
    Ok(())
}

fn wrong(sentence: String) -> Result<(), Contradiction> {
    Err(Contradiction(sentence))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use crate::config::load::parse;

    fn fault(text: &str) -> String {
        parse(Path::new("x.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn backends_are_named_by_the_operator_or_by_their_place() {
        let text = "[[backends]]\nurl = \"http://h:1\"\n[[backends]]\nname = \"b\"\nurl = \"http://h:2\"\n\
                    [[engines]]\nhandshake = \"tcp://h:3\"\ntokenizer = \"t\"\n";
        assert_eq!(parse(Path::new("x"), text).unwrap().backend_names(), ["http-1", "b", "engine-1"]);
        let engine = "[[engines]]\nname = \"e\"\nweight = 2.0\nhandshake = \"tcp://h:3\"\ntokenizer = \"t\"\n";
        assert_eq!(parse(Path::new("x"), engine).unwrap().backend_names(), ["e"]);
        assert!(fault(&engine.replace("2.0", "-1.0")).contains("weight must be above 0"));
        assert!(fault(&format!("{engine}{engine}")).contains("both named 'e'"));
        let named = |name: &str| format!("[[backends]]\nname = \"{name}\"\nurl = \"http://h:1\"\n");
        assert!(fault(&(named("a") + &named("a"))).contains("backends 1 and 2 are both named 'a'"));
        assert!(fault(&(named("http-2") + "[[backends]]\nurl = \"http://h:2\"\n")).contains("both named 'http-2'"));
        assert!(fault(&named("http://h:1")).contains("is no name"));
    }

    #[test]
    fn coming_back_needs_a_time() {
        assert!(fault("[coalesce]\nresume = true\nlinger = \"off\"\n").contains("coalesce.linger is off"));
    }

    #[test]
    fn tenants_are_checked() {
        let tenant = |rest: &str| format!("[[tenants]]\nname = \"a\"\n{rest}\n");
        assert!(fault(&(tenant("") + &tenant(""))).contains("'a' twice"));
        assert!(fault(&tenant("weight = 0.0")).contains("above 0"));
        assert!(fault(&tenant("priority = 8")).contains("from 0, the most urgent, to 7"));
    }

    #[test]
    fn a_name_means_one_model() {
        let model = |name: &str, rest: &str| format!("[[models]]\nname = \"{name}\"\n{rest}\n");
        assert!(fault(&(model("a", "") + &model("a", ""))).contains("'a' twice"));
        assert!(fault(&(model("a", "aliases = [\"x\"]") + &model("x", ""))).contains("'x' twice"));
        assert!(fault(&model("a", "aliases = [\"x\"]\nfallbacks = [\"x\"]")).contains("its own fallback"));
        parse(Path::new("x"), &model("a", "aliases = [\"x\"]\nfallbacks = [\"learned-later\"]")).unwrap();
    }
}
