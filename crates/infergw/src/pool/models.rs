//! What a model's name means: the model that backends serve under it, and those that may answer instead.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::policy::Policy;
use crate::config::{Model, PolicyName, Routing};

/// The models that the configuration says something about, under all their names.
#[derive(Debug)]
pub(super) struct Models {
    by_name: HashMap<Arc<str>, Arc<Entry>>,
    /// For all models that have no policy of their own.
    policy: Named,
    routing: Routing,
}

/// A policy under its name. It outlives the configuration that it came with: what it remembers is worth keeping.
type Named = (PolicyName, Arc<Policy>);

/// One model of the configuration.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its name at its backends.
    pub(super) name: Arc<str>,
    /// The models that may answer instead, by their names at their backends.
    pub(super) fallbacks: Vec<Arc<str>>,
    policy: Option<Named>,
}

impl Models {
    /// The models of a configuration that was checked: no name stands twice.
    pub(super) fn new(models: &[Model], routing: &Routing) -> Self {
        Self::succeeding(None, models, routing)
    }

    /// The same after `before`, whose policies go on with what they remember where their settings have not changed.
    pub(super) fn succeeding(before: Option<&Self>, models: &[Model], routing: &Routing) -> Self {
        let before = before.filter(|before| Routing { policy: routing.policy, ..before.routing.clone() } == *routing);
        let kept = |old: Option<&Named>, name: PolicyName| match old {
            Some(old) if old.0 == name => old.clone(),
            _ => (name, Arc::new(Policy::new(name, routing))),
        };
        let mut served: HashMap<&str, &str> = HashMap::new();
        for model in models {
            served.extend(model.aliases.iter().map(|alias| (alias.as_str(), model.name.as_str())));
        }
        let mut by_name = HashMap::new();
        for model in models {
            let meant = |name: &String| Arc::from(served.get(name.as_str()).copied().unwrap_or(name));
            let fallbacks = model.fallbacks.iter().map(meant).collect();
            let old = before.and_then(|before| before.get(&model.name)?.policy.as_ref());
            let policy = model.policy.map(|name| kept(old, name));
            let entry = Arc::new(Entry { name: Arc::from(model.name.as_str()), fallbacks, policy });
            for name in std::iter::once(&model.name).chain(&model.aliases) {
                by_name.insert(Arc::from(name.as_str()), Arc::clone(&entry));
            }
        }
        let policy = kept(before.map(|before| &before.policy), routing.policy);
        Self { by_name, policy, routing: routing.clone() }
    }

    /// What the configuration says about a name.
    pub(super) fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name)
    }

    /// The models that may serve a question for `name`, by their names at their backends, the best first.
    pub(super) fn meant<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let entry = self.get(name);
        let first = entry.map_or(name, |entry| &*entry.name);
        std::iter::once(first).chain(entry.into_iter().flat_map(|entry| entry.fallbacks.iter().map(|model| &**model)))
    }

    /// The policy for a model, by its name at its backends.
    pub(super) fn policy(&self, model: &str) -> &Policy {
        let own = self.get(model).and_then(|entry| entry.policy.as_ref());
        &own.unwrap_or(&self.policy).1
    }

    /// The name as it stands in the configuration (O1).
    pub(super) fn label(&self, name: &str) -> Option<Arc<str>> {
        self.by_name.get_key_value(name).map(|(known, _)| Arc::clone(known))
    }

    /// Add the names under which clients can ask where `served` holds for one of the models that may answer.
    pub(super) fn add_names(&self, names: &mut BTreeSet<String>, served: impl Fn(&str) -> bool) {
        for name in self.by_name.keys() {
            if self.meant(name).any(&served) {
                names.insert(name.to_string());
            }
        }
    }
}

/// The body with `model` as its model: only the bytes of that one value change (A2). `None` where it names none.
pub(super) fn renamed(body: &Bytes, model: &str) -> Option<Bytes> {
    let found = serde_json::from_slice::<Place<'_>>(body).ok()?.0?;
    let value = found.get();
    // Where the value lies in the body: it borrows from it.
    let start = (value.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
    let (before, rest) = (body.get(..start)?, body.get(start..)?);
    let after = rest.get(value.len()..)?;
    let name = serde_json::to_vec(model).ok()?;
    let mut renamed = BytesMut::with_capacity(before.len() + name.len() + after.len());
    renamed.extend_from_slice(before);
    renamed.extend_from_slice(&name);
    renamed.extend_from_slice(after);
    Some(renamed.freeze())
}

/// The value of the last `model` of an object: the one that counted when the body was read.
struct Place<'a>(Option<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Place<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<'a>(std::marker::PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Members<'a> {
            type Value = Place<'a>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut place = None;
                while let Some(name) = map.next_key::<std::borrow::Cow<'_, str>>()? {
                    if name == "model" {
                        place = Some(map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Place(place))
            }
        }

        deserializer.deserialize_map(Members(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a2_only_the_bytes_of_the_models_name_change() {
        let rename = |body: &'static str| {
            let renamed = renamed(&Bytes::from_static(body.as_bytes()), "org/\"m\"");
            renamed.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
        };
        assert_eq!(
            rename(r#" {"n":1.0e0, "mode\u006c" :"gpt\u002d4" , "x":{"model":"inner"},"t":"\"model\":\"y\""}"#)
                .unwrap(),
            r#" {"n":1.0e0, "mode\u006c" :"org/\"m\"" , "x":{"model":"inner"},"t":"\"model\":\"y\""}"#
        );
        assert_eq!(rename(r#"{"model":"a","model":"b"}"#).unwrap(), r#"{"model":"a","model":"org/\"m\""}"#);
        assert_eq!(rename(r#"{"text":"x"}"#), None);
    }

    #[test]
    fn policies_keep_what_they_remember_while_their_settings_are_the_same() {
        let model = |policy| Model { name: "m".into(), policy, ..Model::default() };
        let routing = Routing::default();
        let first = Models::new(&[model(Some(PolicyName::PrefixAffinity))], &routing);
        let same = |models: &Models, name: &str| std::ptr::eq(first.policy(name), models.policy(name));
        let other = Model { name: "n".into(), ..Model::default() };
        let second = Models::succeeding(Some(&first), &[other, model(Some(PolicyName::PrefixAffinity))], &routing);
        assert!(same(&second, "m") && same(&second, "unheard"));
        let changed = Models::succeeding(Some(&first), &[model(Some(PolicyName::Hash))], &routing);
        assert!(!same(&changed, "m") && same(&changed, "unheard"));
        let routing = Routing { load_bound: 2.0, ..routing };
        assert!(!same(&Models::succeeding(Some(&first), &[], &routing), "unheard"));
    }

    #[test]
    fn a_name_means_its_model_and_then_its_fallbacks() {
        let model = |name: &str, aliases: &[&str], fallbacks: &[&str]| Model {
            name: name.into(),
            aliases: aliases.iter().map(ToString::to_string).collect(),
            fallbacks: fallbacks.iter().map(ToString::to_string).collect(),
            ..Model::default()
        };
        let models = Models::new(
            &[model("big", &["gpt-4"], &["mini", "other"]), model("small", &["mini"], &[])],
            &Routing::default(),
        );
        let meant = |name| models.meant(name).collect::<Vec<_>>();
        assert_eq!(meant("gpt-4"), ["big", "small", "other"]);
        assert_eq!(meant("mini"), ["small"]);
        assert_eq!(meant("unheard"), ["unheard"]);
        let mut names = BTreeSet::new();
        models.add_names(&mut names, |model| model == "small");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["big", "gpt-4", "mini", "small"]);
    }
}
