//! A program written for the published crates compiles and runs against ours: their own example, read where the
//! registry has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::config;
use super::engine::Engine;
use super::restart::fixed;

/// The published crate's example.
fn published_example() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let here = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline"])
        .current_dir(here)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let published = packages.iter().find(|package| package["name"] == "tokenspeed-client").expect("a dev-dependency");
    let manifest = published["manifest_path"].as_str().unwrap();
    Path::new(manifest).parent().unwrap().join("examples/generate.rs")
}

/// The libraries of one crate that cargo built beside this test, the newest first: of ours, those whose dependency file
/// names a source of ours.
fn built(folder: &Path, name: &str, source: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            let Some(stem) = file.strip_prefix("lib").and_then(|file| file.strip_suffix(".rlib")) else { return false };
            let listed = std::fs::read_to_string(folder.join(format!("{stem}.d"))).unwrap_or_default();
            stem.rsplit_once('-').is_some_and(|(stem, _)| stem == name) && listed.contains(source)
        })
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(std::fs::metadata(path).unwrap().modified().unwrap()));
    found
}

fn compile(example: &Path, program: &Path, folder: &Path, libraries: [&Path; 3]) -> Output {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2021", "--crate-name", "generate"]).arg(example).arg("-o").arg(program);
    command.arg("-L").arg(format!("dependency={}", folder.display()));
    for (name, library) in ["ts_client", "ts_wire", "tokio"].into_iter().zip(libraries) {
        command.arg("--extern").arg(format!("{name}={}", library.display()));
    }
    command.output().unwrap()
}

/// Run the compiled example against an engine of its own: two prompts of any length, four tokens each.
fn run(program: &Path, prompts: &Path) -> Output {
    let address = fixed(1).handshake_address;
    let _engine = Engine::start(&address, 0, &config(1), &[]);
    Command::new(program).args([&address, "1", "4", &prompts.display().to_string()]).output().unwrap()
}

/// The example is compiled by the compiler itself, as a package of its own would build libzmq again. Libraries with
/// other features lie in the same folder, and a client and a program with different copies of tokio do not work
/// together: combinations are tried until one does.
#[test]
fn the_published_example_runs() {
    let example = published_example();
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = temporary.join(format!("generate-{}", std::process::id()));
    let prompts = temporary.join(format!("prompts-{}", std::process::id()));
    std::fs::write(&prompts, "1,2,3\n4,5\n").unwrap();
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let clients = built(&folder, "ts_client", "crates/ts-client/src/lib.rs");
    let wires = built(&folder, "ts_wire", "crates/ts-wire/src/lib.rs");
    let runtimes = built(&folder, "tokio", "tokio");
    let mut complaint = format!("no libraries in {}", folder.display());
    for client in &clients {
        for (wire, runtime) in wires.iter().flat_map(|wire| runtimes.iter().map(move |runtime| (wire, runtime))) {
            let mut output = compile(&example, &program, &folder, [client, wire, runtime]);
            if output.status.success() {
                output = run(&program, &prompts);
            }
            if output.status.success() {
                let printed = String::from_utf8(output.stdout).unwrap();
                assert_eq!(printed.lines().count(), 2, "{printed}");
                assert!(printed.lines().all(|line| line.replace(' ', "").contains("1,2,3,4")), "{printed}");
                for file in [program, prompts] {
                    std::fs::remove_file(file).unwrap();
                }
                return;
            }
            complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        }
    }
    panic!("the published example does not compile and run: {complaint}");
}
