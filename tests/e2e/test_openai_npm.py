"""The official npm client: scenes of a conversation, each run by Node.js. Without Node.js or the client they are skipped, which `scripts/node.sh` says aloud."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from places import MODEL, ROOT

SCRIPT = ROOT / "tests" / "e2e" / "node" / "conversation.mjs"
MODULES = pathlib.Path(sys.prefix) / "node"
SCENES = re.findall(r"^  async (\w+)\(\) \{$", SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("scene", SCENES)
def test_scene(demo, scene):
    node = shutil.which("node")
    if not node or not (MODULES / "node_modules" / "openai").is_dir():
        pytest.skip("Node.js or the npm client is not here: run scripts/node.sh")
    run = subprocess.run([node, SCRIPT, MODULES, demo.url, MODEL, scene], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_there_are_scenes():
    assert len(SCENES) > 8
