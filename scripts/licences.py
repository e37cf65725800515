#!/usr/bin/env python3
"""Fail if a dependency has a licence that deny.toml does not allow, or comes from anywhere but a registry or this repo.

The light half of cargo-deny: it reads the same allow list and needs nothing but cargo and Python. It trusts the
`license` field of each crate's manifest; cargo-deny (make deny) also reads the licence texts.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def allowed(expression: str, allow: set[str]) -> bool:
    """Whether an SPDX expression can be satisfied with the allow list. AND binds tighter than OR; `/` is an old OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        position += 1
        return tokens[position - 1]

    def either() -> bool:
        result = both()
        while peek() == "OR":
            take()
            result = both() or result
        return result

    def both() -> bool:
        result = single()
        while peek() == "AND":
            take()
            result = single() and result
        return result

    def single() -> bool:
        if peek() == "(":
            take()
            result = either()
            take()
            return result
        name = take()
        if peek() == "WITH":
            take()
            # An exception only ever grants more than the licence alone.
            return f"{name} WITH {take()}" in allow or name in allow
        return name in allow

    return either()


def main() -> None:
    allow = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    members = set(metadata["workspace_members"])
    problems = []
    for package in metadata["packages"]:
        name = f"{package['name']} {package['version']}"
        if package["id"] in members:
            continue
        if not (package["source"] or "").startswith(("registry+", "sparse+")):
            problems.append(f"{name}: source {package['source']} is neither a registry nor this workspace")
        if not package["license"]:
            problems.append(f"{name}: no licence in its manifest")
        elif not allowed(package["license"], allow):
            problems.append(f"{name}: licence {package['license']} is not in deny.toml")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"licences: {len(metadata['packages']) - len(members)} dependencies, {len(problems)} problems")
    sys.exit(bool(problems))


main()
