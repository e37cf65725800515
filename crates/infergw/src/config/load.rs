//! From a file's text to a configuration, with errors that say where and what to write instead.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::check::Contradiction;
use super::{Config, Upstream};

/// The file that is read where it exists and none is named.
pub const DEFAULT_FILE: &str = "infergw.toml";

/// A configuration that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened.
    #[error("cannot read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its settings contradict each other.
    #[error("{}: {source}", file.display())]
    Contradiction {
        /// The file.
        file: PathBuf,
        /// What contradicts what.
        source: Contradiction,
    },
    /// Its text is no configuration.
    #[error("{}:{line}: {message}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The line at fault.
        line: usize,
        /// What is wrong, and what was probably meant.
        message: String,
    },
}

/// Read `file`, or the default file where there is one.
///
/// # Errors
/// See [`LoadError`].
pub fn load(file: Option<&Path>) -> Result<Config, LoadError> {
    let (file, optional) = match file {
        Some(file) => (file, false),
        None => (Path::new(DEFAULT_FILE), true),
    };
    match std::fs::read_to_string(file) {
        Ok(text) => parse(file, &text),
        Err(error) if optional && error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(source) => Err(LoadError::Read { file: file.to_owned(), source }),
    }
}

/// Read a configuration from text; `file` is for errors.
///
/// # Errors
/// [`LoadError::Invalid`], [`LoadError::Contradiction`]
pub fn parse(file: &Path, text: &str) -> Result<Config, LoadError> {
    let config: Config = from_toml(file, text)?;
    config.check().map_err(|source| LoadError::Contradiction { file: file.to_owned(), source })?;
    Ok(config)
}

/// Read the text of a discovery file: `[[backends]]` in TOML, or a list of them, or an object with `backends`, in JSON.
///
/// # Errors
/// [`LoadError::Invalid`], [`LoadError::Contradiction`]
pub fn parse_backends(file: &Path, text: &str) -> Result<Vec<Upstream>, LoadError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        #[serde(default)]
        backends: Vec<Upstream>,
    }
    let backends = if file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        match text.trim_ascii_start().starts_with('[') {
            true => from_json(file, text)?,
            false => from_json::<Named>(file, text)?.backends,
        }
    } else {
        from_toml::<Named>(file, text)?.backends
    };
    let checked = Config { backends, ..Config::default() };
    checked.check().map_err(|source| LoadError::Contradiction { file: file.to_owned(), source })?;
    Ok(checked.backends)
}

fn from_toml<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, LoadError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(start).filter(|&byte| byte == b'\n').count();
        LoadError::Invalid { file: file.to_owned(), line, message: explain(error.message()) }
    })
}

fn from_json<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, LoadError> {
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        // The place stands beside the file's name already.
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        LoadError::Invalid { file: file.to_owned(), line: error.line(), message: explain(message) }
    })
}

/// Serde's message with the nearest known key in it.
pub(crate) fn explain(message: &str) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let Some(unknown) = names.next().filter(|_| message.starts_with("unknown field")) else {
        return message.to_owned();
    };
    let known: Vec<&str> = names.collect();
    let similar = |name: &&&str| (strsim::jaro_winkler(unknown, name) * 1000.0) as u32;
    match known.iter().max_by_key(similar).filter(|name| similar(name) > 700) {
        Some(nearest) => format!("unknown key '{unknown}'; did you mean '{nearest}'?"),
        None => format!("unknown key '{unknown}'; the keys here are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn fault(text: &str) -> String {
        parse(Path::new("x.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
        assert_eq!(
            fault("[server]\n\nlisen = \"127.0.0.1:1\"\n"),
            "x.toml:3: unknown key 'lisen'; did you mean 'listen'?"
        );
        assert_eq!(
            fault("[[backends]]\nurl = \"http://x\"\nmodel = []"),
            "x.toml:3: unknown key 'model'; did you mean 'models'?"
        );
        assert!(fault("qqq = 1").starts_with("x.toml:1: unknown key 'qqq'; the keys here are server, limits"));
    }

    #[test]
    fn a_discovery_file_is_toml_or_json() {
        let toml = parse_backends(Path::new("x"), "[[backends]]\nurl = \"http://a\"\n").unwrap();
        let list = parse_backends(Path::new("x.json"), r#" [{"url": "http://a"}]"#).unwrap();
        let object = parse_backends(Path::new("x.json"), r#"{"backends": [{"url": "http://a"}]}"#).unwrap();
        assert!(toml == list && list == object && list.len() == 1);
        let fault = |file, text| parse_backends(Path::new(file), text).unwrap_err().to_string();
        assert_eq!(
            fault("x.json", "[\n {\"url\": \"http://a\",\n \"model\": []}]"),
            "x.json:3: unknown key 'model'; did you mean 'models'?"
        );
        assert_eq!(fault("x", "[[backend]]\n"), "x:1: unknown key 'backend'; did you mean 'backends'?");
        assert!(fault("x.json", "[{\"url\": \"http://a\", \"weight\": 0}]").contains("weight must be above 0"));
    }

    #[test]
    fn a_wrong_value_is_explained() {
        assert!(fault("[timeouts]\nidle = \"soon\"").contains("write 250ms, 30s, 5m, 1h or off"));
        assert!(fault("[limits]\nmax_body = \"a lot\"").contains("512KiB, 32MiB, 1GiB"));
        assert!(fault("[server\n").starts_with("x.toml:1:"));
    }

    #[test]
    fn sizes_and_durations_are_read() {
        let config =
            parse(Path::new("x"), "[limits]\nmax_body = \"1MiB\"\n[timeouts]\nidle = \"1h\"\ntotal = \"off\"").unwrap();
        assert_eq!(config.limits.max_body, 1 << 20);
        assert_eq!(config.timeouts.idle.as_secs(), 3600);
        assert!(config.timeouts.total.is_zero());
    }
}
