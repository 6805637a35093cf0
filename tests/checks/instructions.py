#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""The instructions that the main paths take, so that a slow-down is noticed without timing anything.

FIGURES are those of g++ 12 -O2 on x86-64, for a lock and its release, or a wait, with the loop around
it. A path may take a tenth more. One that takes much less needs a new figure here, or the next
slow-down would hide behind the old one.

usage: instructions.py     prints the table as it is now
"""
import pathlib
import platform
import re
import shutil
import sys
import tempfile

from common import INCLUDE, ROOT, WARNINGS, run

FIGURES = {
    "int": 209,
    "int, unsynchronized": 162,
    "int, 16 shards": 207,
    "int, shared": 209,
    "string": 339,
    "string, unsynchronized": 270,
    "try_lock": 174,
    "whole mux": 353,
    "whole mux, 16 shards": 1918,
    "lock_all of 2": 701,
    "queueing": 255,
    "hand-over": 262,
    "queueing, unsynchronized": 220,
    "hand-over, unsynchronized": 202,
    "stopped": 498,
    "int, counting": 219,
    "queueing, counting": 288,
    "hand-over, counting": 298,
    "int, tracing not started": 230,
    "int, tracing": 1003,
}
MORE, LESS = 1.1, 0.75
OPERATIONS = 1000  # of each path, in the program


def counted():
    """({path: instructions}, what went wrong)."""
    figures = {}
    for part in [[], ["-DOBSERVED"]]:
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "instructions"
            code, output = run(["g++", "-std=c++20", "-O2", "-DNDEBUG", *part, *WARNINGS,
                                "-I", INCLUDE, ROOT / "tests/benchmarks/speed/instructions.cpp",
                                "-o", program, "-pthread"])
            if code == 0:
                code, output = run(["valgrind", "--tool=callgrind",
                                    f"--callgrind-out-file={folder}/out", program])
            if code != 0:
                return {}, [output]
            for dump in pathlib.Path(folder).glob("out.*"):
                text = dump.read_text()
                if path := re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.M):
                    total = int(re.search(r"^(?:totals|summary): (\d+)$", text, re.M)[1])
                    figures[path[1]] = total / OPERATIONS
    figures.pop("warm", None)
    return figures, []


def check():
    """Yields (path, complaints)."""
    code, version = run(["g++", "-dumpversion"])
    if platform.machine() not in ("x86_64", "AMD64") or version.split(".")[0].strip() != "12":
        print("instructions: the figures are for g++ 12 on x86-64, skipped")
        return
    if not shutil.which("valgrind"):
        yield "instructions", ["valgrind is not installed"]
        return
    figures, trouble = counted()
    for path in FIGURES | figures:
        wanted, found = FIGURES.get(path), figures.get(path)
        complaints = list(trouble)
        if wanted is None or found is None:
            complaints.append(f"the table says {wanted}, the program {found}")
        elif found > wanted * MORE:
            complaints.append(f"{found:.0f} instructions instead of {wanted}")
        elif found < wanted * LESS:
            complaints.append(f"only {found:.0f} instructions: put that into the table "
                              f"instead of {wanted}")
        yield f"instructions: {path}", complaints


if __name__ == "__main__":
    found, trouble = counted()
    for path in FIGURES | found:
        print(f'    "{path}": {found.get(path, 0):.0f},')
    print(*trouble, sep="\n")
    sys.exit(bool(trouble))
