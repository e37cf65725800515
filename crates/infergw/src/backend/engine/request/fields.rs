//! Typed reads of a body's fields: absent and null are `None`, everything else is of the right type and in range, or a 400
//! with the field's name.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::api::error::ApiError;

/// A request's body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    body: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(body: &'a Map<String, Value>) -> Self {
        Self { body }
    }

    /// A field that is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.body.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, Value::as_bool, || "true or false".into())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, Value::as_str, || "a string".into())
    }

    pub(super) fn int(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        // 5.0 is an integer in JSON's eyes and in Python clients' hands.
        let whole = |value: &Value| value.as_i64().or_else(|| whole_float(value)).filter(|n| range.contains(n));
        self.read(name, whole, || format!("an integer {}", between(*range.start(), *range.end())))
    }

    pub(super) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let number = |value: &Value| value.as_f64().filter(|n| range.contains(n));
        self.read(name, number, || format!("a number between {} and {}", range.start(), range.end()))
    }

    /// Like [`number`](Self::number), without the lower end.
    pub(super) fn positive(&self, name: &str, most: f64) -> Result<Option<f64>, ApiError> {
        let number = |value: &Value| value.as_f64().filter(|&n| n > 0.0 && n <= most);
        self.read(name, number, || format!("a number above 0 and at most {most}"))
    }

    fn read<T>(
        &self,
        name: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
        allowed: impl Fn() -> String,
    ) -> Result<Option<T>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match convert(value) {
                Some(value) => Ok(Some(value)),
                None => Err(ApiError::invalid(&format!("'{name}' must be {}.", allowed()), Some(name))),
            },
        }
    }
}

fn whole_float(value: &Value) -> Option<i64> {
    let float = value.as_f64()?;
    // Beyond 2^53 a float does not say which integer is meant.
    (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0).then_some(float as i64)
}

fn between(low: i64, high: i64) -> String {
    match (low, high) {
        (i64::MIN, i64::MAX) => "of 64 bits".into(),
        (low, i64::MAX) => format!("of at least {low}"),
        (low, high) => format!("between {low} and {high}"),
    }
}
