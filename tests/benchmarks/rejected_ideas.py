#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Measures the ideas that amux has rejected: the figures in docs/design.md.

usage: rejected_ideas.py [depth] [instructions] [allocations] [bytes] [turns] [store]

Depths are the longest hand-over that a stack of 8 MB survives, out of a million. Instructions are
counted by valgrind's callgrind. Needs g++, clang++-19 and valgrind; builds in build/ideas.
"""
import os
import pathlib
import re
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("AMUX_BUILD_ROOT") or ROOT / "build") / "ideas"
HERE = ROOT / "tests/benchmarks"
MOST = 1_000_000


def build(name, sources, compiler="g++", flags=("-O2", "-DNDEBUG")):
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / name
    newest = max(path.stat().st_mtime for path in [*ROOT.glob("include/**/*.hpp"), *sources])
    if not program.exists() or program.stat().st_mtime < newest:
        subprocess.run([compiler, "-std=c++20", *flags, f"-I{ROOT}/include", f"-I{ROOT}/tests",
                        *sources, "-o", program, "-pthread"], check=True)
    return program


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True,
                          text=True).stdout


def small_stack():
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def survives(program, idea, n):
    environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0")
    command = [str(program), idea, str(n)]
    if "asan" in program.name:  # g++'s cannot map the addresses that some kernels choose
        command = ["setarch", "-R", *command]
    return subprocess.run(command, env=environment, preexec_fn=small_stack,
                          capture_output=True).returncode == 0


def deepest(program, idea):
    if survives(program, idea, MOST):
        return "no limit found"
    low, high = 0, MOST
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if survives(program, idea, middle) else (low, middle)
    return f"{low}"


def depth():
    sanitize = "-fsanitize=address"
    for compiler in ("g++", "clang++-19"):
        for flags in (["-O0"], ["-O1"], ["-O2"], ["-O2", sanitize]):
            name = f"depth_{compiler}_{'asan' if sanitize in flags else flags[0][1:]}"
            program = build(name, [HERE / "stack_depth.cpp"], compiler, flags)
            print(f"depth: {compiler} {' '.join(flags)}: symmetric transfer "
                  f"{deepest(program, 'transfer')}, resumed inside unlock() "
                  f"{deepest(program, 'nest')}", flush=True)


def ideas():
    return build("ideas", [HERE / "rejected_ideas.cpp", ROOT / "tests/support/allocation_counter.cpp"])


def instructions():
    def counted(which, n):
        done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
                               ideas(), "lock", which, str(n)], check=True, capture_output=True,
                              text=True)
        return int(re.search(r"Collected : (\d+)", done.stderr)[1])

    for which in ("ours", "ours_single", "std_mutex", "map", "ours_int", "map_int", "whole",
                  "whole_divided"):
        each = (counted(which, 11_000) - counted(which, 1_000)) / 10_000
        print(f"instructions: lock and unlock, {which}: {each:.0f}", flush=True)


def allocations():
    for which in ("ours", "callbacks"):
        print(f"allocations: a wait, {which}: {output_of(ideas(), 'wait', which, 10_000).strip()}")


def bytes_of_an_idle_mux():
    ours, divided = output_of(ideas(), "bytes").split()
    print(f"bytes: an idle mux: {ours}; divided from the start: {divided}")


def turns():
    for line in output_of(ideas(), "turns").splitlines():
        print(f"turns: of who waits beside one who asks again at once: {line}")


def store():
    ours, each = output_of(ideas(), "store").split()
    print(f"store: questions for 1000 waiters in 10 s: {ours} in line; {each} when each asks")


MEASURES = {"depth": depth, "instructions": instructions, "allocations": allocations,
            "bytes": bytes_of_an_idle_mux, "turns": turns, "store": store}

if __name__ == "__main__":
    for measure in sys.argv[1:] or MEASURES:
        MEASURES[measure]()
