//! Write the golden frames as the corpus of every target:
//! `cargo run --bin corpus`, then `cargo +nightly fuzz run output`.

use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for target in ["request", "output", "handshake", "value"] {
        fs::create_dir_all(here.join("corpus").join(target))?;
    }
    for file in fs::read_dir(here.join("../tests/golden"))? {
        let file = file?.path();
        let golden: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for case in golden["cases"].as_array().ok_or("no cases")? {
            let frames = case["frames"].as_array().ok_or("no frames")?;
            // Messages to an engine begin with a type frame.
            let typed = matches!(case["kind"].as_str(), Some("abort" | "add" | "control"));
            let payload = frames.get(usize::from(typed)).and_then(|frame| frame.as_str());
            let bytes = unhex(payload.ok_or("no payload")?)?;
            let name = format!("{stem}-{}", case["name"].as_str().ok_or("no name")?);
            for target in ["request", "output", "handshake", "value"] {
                fs::write(here.join("corpus").join(target).join(&name), &bytes)?;
            }
        }
    }
    Ok(())
}

fn unhex(hex: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)).collect()
}
