//! What of a new configuration can come into force while the gateway runs.

use toml::Table;

use crate::config::Config;

/// `new` with what only a restart can change as it is in `old`, and the names of those settings where they differ.
pub(super) fn applicable(old: &Config, new: Config) -> (Config, Vec<String>) {
    let applied = Config {
        backends: new.backends.clone(),
        models: new.models.clone(),
        routing: new.routing.clone(),
        retries: new.retries.clone(),
        discovery: new.discovery.clone(),
        keys: new.keys.clone(),
        admission: new.admission.clone(),
        tenants: new.tenants.clone(),
        ..old.clone()
    };
    let left = names(&table(&applied), &table(&new));
    (applied, left)
}

fn table(config: &Config) -> Table {
    // A configuration came from this form.
    Table::try_from(config).unwrap_or_default()
}

/// The settings that differ: `section.key`, or the section where it is a list.
fn names(a: &Table, b: &Table) -> Vec<String> {
    let mut names = Vec::new();
    for section in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
        match (a.get(section), b.get(section)) {
            (Some(toml::Value::Table(a)), Some(toml::Value::Table(b))) => {
                let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
                let differ = keys.filter(|key| a.get(*key) != b.get(*key));
                names.extend(differ.map(|key| format!("{section}.{key}")));
            }
            (a, b) if a != b => names.push(section.clone()),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;
    use crate::config::load::parse;

    #[test]
    fn what_needs_a_restart_is_named_and_kept() {
        let config = |text: &str| parse(Path::new("x"), text).unwrap();
        let old = config("[server]\nworkers = 1\n[[keys]]\nkey = \"a\"\n");
        let new = config(
            "[server]\nworkers = 2\nadmin = \"127.0.0.1:1\"\n[timeouts]\nidle = \"1s\"\n[[keys]]\nkey = \"b\"\n\
             [[backends]]\nurl = \"http://h\"\n[routing]\npolicy = \"hash\"\n",
        );
        let (applied, mut left) = applicable(&old, new.clone());
        left.sort();
        assert_eq!(left, ["server.admin", "server.workers", "timeouts.idle"]);
        assert_eq!((&applied.backends, &applied.routing), (&new.backends, &new.routing));
        assert_eq!((&applied.server, &applied.keys), (&old.server, &new.keys));
        assert_eq!(applicable(&applied, applied.clone()).1, [""; 0]);
    }
}
