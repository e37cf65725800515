//! `--demo`: the reference engine in this process, over the real wire on the loopback interface.

use std::path::{Path, PathBuf};

use ts_engine::serve::ModelSource;
use ts_engine::{Engine, EngineConfig, SimulateConfig};

use crate::backend::StartError;
use crate::config::{Demo, EngineGroup};

/// The model's name for clients.
pub const MODEL_NAME: &str = "smollm2-135m";
/// Where `make demo-model` puts the model, from the workspace's root.
pub const MODEL_FILE: &str = ".demo/smollm2-135m.gguf";
/// The environment variable that names another place.
pub const MODEL_VARIABLE: &str = "INFERGW_DEMO_MODEL";

/// The running engine. Dropping it ends it without a word; [`DemoEngine::stop`] says goodbye.
#[derive(Debug)]
pub struct DemoEngine {
    engine: Engine,
}

/// The demo model's file: the configured one, else the first that is there of the current directory, the workspace that the
/// executable was built in, and `$INFERGW_DEMO_MODEL`.
///
/// # Errors
/// There is none: one sentence that says how to get it.
pub fn find_model(demo: &Demo) -> Result<PathBuf, StartError> {
    if let Some(file) = &demo.model {
        return match file.is_file() {
            true => Ok(file.clone()),
            false => Err(StartError(format!("The demo model {} is not there.", file.display()))),
        };
    }
    let executable = std::env::current_exe().unwrap_or_default();
    let beside = executable.ancestors().skip(1).map(|folder| folder.join(MODEL_FILE));
    let named = std::env::var_os(MODEL_VARIABLE).map(PathBuf::from);
    let places = std::iter::once(PathBuf::from(MODEL_FILE)).chain(beside).chain(named);
    places.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        StartError(format!(
            "There is no backend: give --upstream or --engines, or run `make demo-model` to fetch the demo model ({MODEL_FILE})."
        ))
    })
}

/// The engine group that the demo engine will be: started like any other, on a free port.
///
/// # Errors
/// See [`find_model`].
pub fn group(demo: &Demo) -> Result<EngineGroup, StartError> {
    Ok(EngineGroup {
        handshake: "tcp://127.0.0.1:0".into(),
        model: Some(MODEL_NAME.into()),
        tokenizer: find_model(demo)?,
        ..EngineGroup::default()
    })
}

/// Load the model, which takes a second or two, and let the engine dial `handshake`, the address that the group has bound.
///
/// # Errors
/// A model that cannot be loaded, or a simulation that cannot be read.
pub async fn launch(demo: &Demo, model: &Path, handshake: &str) -> Result<DemoEngine, StartError> {
    let source = match &demo.simulate {
        Some(text) => {
            let simulation = text.parse::<SimulateConfig>().map_err(|e| StartError(format!("demo.simulate: {e}")))?;
            ModelSource::Simulated(simulation)
        }
        None => ModelSource::Gguf(model.to_owned()),
    };
    let mut config = EngineConfig::new(handshake, source);
    config.name = Some(MODEL_NAME.into());
    config.threads = demo.threads.unwrap_or(1);
    let started = tokio::task::spawn_blocking(move || ts_engine::start(config)).await;
    match started {
        Ok(Ok(engine)) => Ok(DemoEngine { engine }),
        Ok(Err(error)) => Err(StartError(format!("demo engine: {error}"))),
        Err(_) => Err(StartError("demo engine: it crashed while it started".into())),
    }
}

impl DemoEngine {
    /// Whether it lives.
    pub fn is_running(&self) -> bool {
        self.engine.is_running()
    }

    /// Let it announce its shutdown, and wait until it has ended.
    pub async fn stop(self) {
        let stopped = tokio::task::spawn_blocking(move || self.engine.stop()).await;
        if let Ok(Err(error)) = stopped {
            tracing::warn!(%error, "demo engine did not stop in order");
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_missing_file_says_which() {
        let demo = Demo { model: Some("/nowhere/x.gguf".into()), ..Demo::default() };
        assert!(find_model(&demo).unwrap_err().to_string().contains("/nowhere/x.gguf"));
    }

    #[tokio::test]
    async fn a_bad_simulation_says_what_is_wrong() {
        let demo = Demo { simulate: Some("kv-page=9".into()), ..Demo::default() };
        let error = launch(&demo, Path::new("x.gguf"), "tcp://127.0.0.1:1").await.unwrap_err();
        assert!(error.to_string().contains("kv-page"), "{error}");
    }
}
