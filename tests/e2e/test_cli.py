"""The command line teaches: help, check, the first run without a model."""

import os
import shutil
import subprocess

from gateway import Gateway
from places import BIN, DEMO_MODEL


def run(*arguments, folder):
    return subprocess.run([str(BIN), *arguments], cwd=folder, capture_output=True, text=True, timeout=30)


def test_help_names_the_settings(tmp_path):
    shown = run("serve", "--help", folder=tmp_path).stdout
    for flag in ("--listen", "--upstream", "--engines", "--ranks", "--model", "--tokenizer", "--demo", "--api-key", "--max-body"):
        assert flag in shown, flag


def test_check_prints_the_configuration(tmp_path):
    result = run("check", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "127.0.0.1:8080" in result.stdout


def test_check_refuses_an_unknown_key_and_names_the_nearest(tmp_path):
    (tmp_path / "infergw.toml").write_text('[server]\nlisen = "127.0.0.1:1"\n')
    result = run("check", folder=tmp_path)
    assert result.returncode == 2
    assert "listen" in result.stderr + result.stdout


def test_without_any_backend_it_says_how_to_get_one(tmp_path):
    # Neither the variable nor the folder of the executable leads to a demo model.
    alone = shutil.copy(BIN, tmp_path / "infergw")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INFERGW_")}
    command = [str(alone), "serve", "--listen", "127.0.0.1:0"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode != 0
    assert "make demo-model" in result.stderr and "--upstream" in result.stderr, result.stderr


def test_without_any_flag_it_serves_the_fetched_demo_model(tmp_path):
    """The README's `cargo run -p infergw`: the model is where `make demo-model` leaves it."""
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "smollm2-135m.gguf").symlink_to(DEMO_MODEL)
    with Gateway(folder=tmp_path, ready_within=120) as gateway:
        assert gateway.chat("Say yes.", max_tokens=3).json()["usage"]["completion_tokens"] == 3
