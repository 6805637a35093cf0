#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""How fast asyncmux is, beside floors and peers, in one table.

usage: speed.py [--compiler CXX] [--rounds N] [PATTERN...]
       speed.py --write-docs

Builds tests/benchmarks/speed with -O2 -DNDEBUG and runs each row whose name contains a PATTERN in a
process of its own; as root it installs the Debian packages that this needs. Prints a table: nanoseconds of processor time for each operation, the middle half
of the samples, and the ratio where there is a goal. A lone time means nothing on a machine that is
shared; the contenders of a row are measured in turn, so their ratios do.

What was measured last of each row stands in speed/COMPILER.json below build/. From those of g++ and
clang++-19 --write-docs makes the tables and plots of docs/performance.md.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/benchmarks/speed"))

import compile_time  # noqa: E402
import pages  # noqa: E402

BUILD = pathlib.Path(os.environ.get("AMUX_BUILD_ROOT") or ROOT / "build") / "speed"
PROGRAMS = ["amux_speed", "amux_speed_memory"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(compiler):
    folder = BUILD / compiler
    package = {"g++": "g++", "clang++-19": "clang-19"}.get(compiler)
    run(ROOT / "tests/support/install.sh", "cmake", "libtbb-dev", "libboost1.81-dev",
        *filter(None, [package]))
    run("cmake", "-S", ROOT, "-B", folder, f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_CXX_FLAGS=-O2 -DNDEBUG", "-DAMUX_BUILD_BENCHMARKS=ON", "-DAMUX_BUILD_TESTS=OFF",
        "-DAMUX_BUILD_EXAMPLES=OFF")
    run("cmake", "--build", folder, "-j", os.environ.get("AMUX_JOBS") or os.cpu_count() or 1,
        "--target", *PROGRAMS)
    return [folder / "tests/benchmarks" / name for name in PROGRAMS]


def measure(compiler, patterns, rounds):
    """Yields the lines of one row after the other."""
    def asked(row):
        return not patterns or any(pattern in row for pattern in patterns)

    for program in build(compiler):
        for row in filter(asked, run(program, "--list").splitlines()):
            yield [json.loads(line) for line in run(program, row, rounds).splitlines()]
    if asked("compile time"):
        yield list(compile_time.lines(compiler, ROOT / "include", rounds))


def show(lines):
    row = None
    for line in lines:
        if "median" not in line:
            continue
        if row != line["row"]:
            row = line["row"]
            print(row)
        text = f"    {line['contender']:42}{pages.number(line['median']):>9} {line['unit']:12}"
        if line["samples"] > 1:
            text += f"{pages.number(line['low']):>7} to {pages.number(line['high'])}"
        print(text)
    for goal in pages.goals(lines):
        print(f"      {'met' if goal.met else 'missed':8}{goal.who} / {goal.against}: "
              f"{goal.ratio:.2f}, goal {goal.at_most:.2f}")
    print(flush=True)


def with_new(known, lines, rows):
    """`lines` in the place of those of these rows, else at the end."""
    at = next((n for n, line in enumerate(known) if line["row"] in rows), len(known))
    return known[:at] + lines + [line for line in known[at:] if line["row"] not in rows]


def main():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--compiler", default="g++")
    options.add_argument("--rounds", type=int, default=0, help="at most, instead of 25")
    options.add_argument("--write-docs", action="store_true")
    options.add_argument("patterns", nargs="*", metavar="PATTERN")
    asked = options.parse_args()
    if asked.write_docs:
        return pages.write({name: BUILD / f"{name}.json" for name in ("g++", "clang++-19")})
    result = BUILD / f"{asked.compiler}.json"
    known = pages.read(result)
    for lines in measure(asked.compiler, asked.patterns, asked.rounds):
        rows = {line["row"] for line in lines}
        if any("median" in line for line in lines):
            show(lines)
        else:  # nothing worth keeping, such as of two threads that never ran at a time
            lines = []
        known = with_new(known, lines, rows)
        result.write_text("".join(json.dumps(line) + "\n" for line in known))
    return None


if __name__ == "__main__":
    main()
