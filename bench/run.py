#!/usr/bin/env python3
"""The benchmarks of infergw: see README.md beside this file.

usage: run.py [--rounds N] [--quick] [relay] [saturated] [events] [engine]
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

import engine as engines
import peers
import targets

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def load(url: str, **plan) -> dict:
    """One run of the generator."""
    flags = []
    for name, value in plan.items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [flag, str(value)]
    command = [targets.built("infergw-bench"), "load", "--url", url, *flags]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if report["errors"]:
        raise SystemExit(f"{report['errors']} of {report['requests']} questions failed: {report['first_error']}")
    return report


def alternating(rounds: int, script: dict, plan: dict) -> dict[str, list[dict]]:
    """Every target in front of the same mock, in turns, so that a slow moment of the machine meets them all."""
    reports: dict[str, list[dict]] = {}
    with targets.mock(**script) as upstream:
        for _ in range(rounds):
            for name, start in targets.available().items():
                with start(upstream) as url:
                    reports.setdefault(name, []).append(load(url, **plan))
    return reports


def middle(reports: list[dict], *path: str) -> float:
    """The median over the rounds of one number of the report."""

    def pick(report):
        for key in path:
            report = report[key]
        return report

    return statistics.median(pick(report) for report in reports)


def relay(rounds: int, scale: float) -> dict:
    plan = {"connections": 32, "requests": int(8000 * scale), "warmup": 500, "pause_us": 4000}
    reports = alternating(rounds, {"delay_us": 20_000}, plan)
    base = middle(reports["direct"], "latency", "p50_us")
    lines, result = [], {}
    for name, runs in reports.items():
        p50, p99 = middle(runs, "latency", "p50_us"), middle(runs, "latency", "p99_us")
        result[name] = {"p50_us": p50, "p99_us": p99, "added_p50_us": p50 - base}
        lines.append(f"{name:10} p50 {p50 / 1000:7.3f} ms   p99 {p99 / 1000:7.3f} ms   added p50 {p50 - base:+7.0f} us")
    return {"lines": lines, "targets": result, "goal": "infergw adds under 150 us", "met": result["infergw"]["added_p50_us"] < 150, "runs": reports}


def saturated(rounds: int, scale: float) -> dict:
    plan = {"connections": 32, "requests": int(40_000 * scale), "warmup": 2000}
    return shares(alternating(rounds, {"delay_us": 0}, plan), "requests_per_s")


def events(rounds: int, scale: float) -> dict:
    plan = {"connections": 64, "requests": int(1500 * scale), "warmup": 64, "stream": True}
    return shares(alternating(rounds, {"tokens": 500}, plan), "events_per_s")


def shares(reports: dict, unit: str) -> dict:
    base = middle(reports["direct"], unit)
    lines, result = [], {}
    for name, runs in reports.items():
        rate = middle(runs, unit)
        result[name] = {unit: rate, "of_direct": rate / base}
        lines.append(f"{name:10} {rate:12,.0f} {unit.replace('_per_s', '/s')}   {rate / base:5.2f} of direct")
    return {"lines": lines, "targets": result, "runs": reports}


def engine(rounds: int, scale: float) -> dict:
    plan = {"connections": 64, "requests": int(1280 * scale), "warmup": 64, "stream": True, "max_tokens": 512, "ignore_eos": True}
    reports: dict[str, list[dict]] = {}
    for _ in range(rounds):
        for name, start in engines.available().items():
            with start() as (url, model, pid):
                before = peers.cpu_seconds(pid)
                report = load(url, model=model, **plan)
                used = peers.cpu_seconds(pid) - before
            # The warm-up's share of the CPU time is its share of the questions.
            report["tokens_per_core_s"] = report["tokens"] * (1 + plan["warmup"] / plan["requests"]) / used
            reports.setdefault(name, []).append(report)
    lines, result = [], {}
    for name, runs in reports.items():
        rate, per_core, first = middle(runs, "tokens_per_s"), middle(runs, "tokens_per_core_s"), middle(runs, "first_byte", "p50_us")
        result[name] = {"tokens_per_s": rate, "tokens_per_core_s": per_core, "first_byte_p50_us": first}
        lines.append(f"{name:10} {rate:12,.0f} tokens/s over 64 streams   {per_core:12,.0f} tokens per CPU second of the gateway   first byte p50 {first / 1000:6.1f} ms")
    goal, met = "200,000 tokens/s on two cores", result["infergw"]["tokens_per_s"] >= 200_000
    if "smg" in result:
        ratio = result["infergw"]["tokens_per_core_s"] / result["smg"]["tokens_per_core_s"]
        lines.append(f"{'ratio':10} {ratio:12.1f} times smg's tokens per CPU second")
        goal, met = goal + ", 3 times smg's tokens per core", met and ratio >= 3
    return {"lines": lines, "targets": result, "goal": goal, "met": met, "runs": reports}


BENCHMARKS = {"relay": relay, "saturated": saturated, "events": events, "engine": engine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], default=list(BENCHMARKS), metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=3, help="runs of each target; the median is shown")
    parser.add_argument("--quick", action="store_true", help="a tenth of the questions, one round")
    options = parser.parse_args()
    rounds, scale = (1, 0.1) if options.quick else (options.rounds, 1)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "system": platform.system()}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=targets.ROOT, capture_output=True, text=True).stdout.strip()
    RESULTS.mkdir(exist_ok=True)
    for name in options.names:
        result = BENCHMARKS[name](rounds, scale)
        print(f"{name}")
        for line in result.pop("lines"):
            print(f"  {line}")
        if "goal" in result:
            print(f"  goal: {result['goal']}: {'met' if result['met'] else 'MISSED'}")
        sys.stdout.flush()
        when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        record = {"benchmark": name, "when": when, "commit": commit, "host": machine, "quick": options.quick, **result}
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


main()
