#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""How fast asyncmux is, beside floors and peers, in one table.

usage: speed.py [--compiler CXX] [--rounds N] [PATTERN...]

Builds tests/benchmarks/speed with -O2 -DNDEBUG and runs each row whose name contains a PATTERN in a
process of its own. Writes speed/COMPILER.json below build/ and prints it as a table: nanoseconds of
processor time for each operation, and the ratio where there is a goal. A lone time means nothing on
a machine that is shared; the contenders of a row are measured in turn, so their ratios do.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("AMUX_BUILD_ROOT") or ROOT / "build") / "speed"
PROGRAMS = ["amux_speed", "amux_speed_memory"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(compiler):
    folder = BUILD / compiler
    run("cmake", "-S", ROOT, "-B", folder, f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_CXX_FLAGS=-O2 -DNDEBUG", "-DAMUX_BUILD_BENCHMARKS=ON", "-DAMUX_BUILD_TESTS=OFF",
        "-DAMUX_BUILD_EXAMPLES=OFF")
    run("cmake", "--build", folder, "-j", os.environ.get("AMUX_JOBS") or os.cpu_count() or 1,
        "--target", *PROGRAMS)
    return [folder / "tests/benchmarks" / name for name in PROGRAMS]


def measure(programs, patterns, rounds):
    """Yields (row, its lines)."""
    for program in programs:
        for row in run(program, "--list").splitlines():
            if not patterns or any(pattern in row for pattern in patterns):
                yield row, [json.loads(line) for line in
                            run(program, row, rounds).splitlines()]


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show(row, lines):
    values = {line["contender"]: line for line in lines if "median" in line}
    print(row)
    for name, line in values.items():
        text = f"    {name:34}{number(line['median']):>9} {line['unit']:14}"
        if line["samples"] > 1:
            text += f"{number(line['low']):>7} to {number(line['high'])}"
        print(text)
    for goal in lines:
        if "at_most" not in goal:
            continue
        if goal["contender"] not in values or goal["against"] not in values:
            continue
        ratio = values[goal["contender"]]["median"] / values[goal["against"]]["median"]
        text = f"{goal['contender']} / {goal['against']}"
        print(f"      {'missed' if ratio > goal['at_most'] else 'met':8}{text:62}{ratio:.2f}, "
              f"goal {goal['at_most']:.2f}")
    print(flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--compiler", default="g++")
    options.add_argument("--rounds", type=int, default=0, help="at most, instead of 25")
    options.add_argument("patterns", nargs="*", metavar="PATTERN")
    asked = options.parse_args()
    programs = build(asked.compiler)
    everything = []
    for row, lines in measure(programs, asked.patterns, asked.rounds):
        show(row, lines)
        everything += lines
    if not asked.patterns:
        result = BUILD / f"{asked.compiler}.json"
        result.write_text("".join(json.dumps(line) + "\n" for line in everything))
        print(f"written: {result}")


if __name__ == "__main__":
    main()
