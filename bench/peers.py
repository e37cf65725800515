"""Other gateways that infergw is measured against, and what a process has used of the cores."""

import os
import pathlib
import subprocess
import sys

SMG = "smg==1.13.0"
# The packages that write a tokenizer for it from the demo model.
TOKENIZER = ["gguf==0.19.0"]

VENV = pathlib.Path(os.environ.get("INFERGW_BENCH_VENV", pathlib.Path(__file__).resolve().parent / ".venv"))


def smg() -> list[str] | None:
    """The command that starts smg, installed at the first call; None (and a word of why) where it cannot be."""
    program = VENV / "bin" / "smg"
    if not program.exists():
        print(f"installing {SMG} into {VENV} (once)", file=sys.stderr)
        pip = VENV / "bin" / "pip"
        for command in ([sys.executable, "-m", "venv", VENV], [pip, "install", "--quiet", "--disable-pip-version-check", SMG, *TOKENIZER]):
            if subprocess.run(command).returncode != 0:
                print(f"smg is left out: {' '.join(map(str, command))} failed", file=sys.stderr)
                return None
    return [str(program)]


def model_folder(gguf: str) -> str:
    """The tokenizer and template of a GGUF as the model directory that smg reads."""
    folder = VENV / "model"
    if not (folder / "config.json").exists():
        writer = pathlib.Path(__file__).resolve().parent / "tokenizer_json.py"
        subprocess.run([VENV / "bin" / "python", writer, gguf, folder], check=True)
    return str(folder)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its living descendants so far, user and system."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, list[tuple[int, int]]] = {}
    own = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it ended meanwhile
        number, rest = int(text.split(" ", 1)[0]), text.rpartition(")")[2].split()
        parent, used = int(rest[1]), int(rest[11]) + int(rest[12])
        parents.setdefault(parent, []).append((number, used))
        own = used if number == pid else own
    total, queue = own, [pid]
    while queue:
        for number, used in parents.get(queue.pop(), []):
            total += used
            queue.append(number)
    return total / ticks
