#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""amux with LLVM's standard library, whose <stop_token> is behind -fexperimental-library before version 20.

Each public header compiles alone, without a warning; a program that uses what depends most on the library works; and
without the flag the one thing said first is what to do. Ends with "N passed, N failed".
"""
import os
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "checks"))
sys.dont_write_bytecode = True
from common import INCLUDE, WARNINGS, in_parallel, run, usable  # noqa: E402

COMPILE = ["clang++-19", "-std=c++20", "-stdlib=libc++", *WARNINGS, "-I", INCLUDE, "-pthread"]
FLAG = "-fexperimental-library"


def header_alone(name):
    code, output = run([*COMPILE, FLAG, "-fsyntax-only", "-x", "c++", "-"],
                       f"#include <{name}>\n" * 2)
    return 1, [] if code == 0 else [f"{name} alone: {output}"]


def told_of_the_flag(name):
    code, output = run([*COMPILE, "-fsyntax-only", "-x", "c++", "-"], f"#include <{name}>\n")
    first = re.search(r"error: .*", output)
    right = code != 0 and first and FLAG in first[0]
    return 1, [] if right else [f"{name} without {FLAG}: the first error is not ours: {output}"]


def smoke(source):
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "smoke")
        code, output = run([*COMPILE, FLAG, source, "-o", program])
        if code != 0:
            return 0, [output]
        code, output = run([program], timeout=120)
        good = re.search(r"^(\d+) passed, 0 failed$", output, re.M)
        return (int(good[1]), []) if code == 0 and good else (0, [output or f"exit code {code}"])


def main():
    public = [name for name in usable() if "/detail/" not in name]
    # The longest first.
    jobs = [(smoke, "tests/libcxx/smoke.cpp"), *((header_alone, name) for name in public),
            *((told_of_the_flag, f"amux/{name}.hpp")
              for name in ("amux", "asyncmux", "distributed_lock", "event_loop"))]
    done = in_parallel(lambda job: job[0](job[1]), jobs)
    complaints = [complaint for _, trouble in done for complaint in trouble]
    for complaint in complaints:
        print("FAILED", complaint.rstrip().replace("\n", "\n    "))
    print(f"{sum(good for good, trouble in done if not trouble)} passed, {len(complaints)} failed")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
