#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Each tests/compile_fail/*.cpp has one wrong line, and the compiler says the right thing about it.

    // SPDX-License-Identifier: BSL-1.0
    // error: no matching function .*try_lock_for      a regular expression for g++'s message
    ...
    mux.try_lock_for("k");  // wrong                   the wrong line

Without the line that ends in `// wrong` the file must compile: so the file fails for this reason
and for no other. Alone: tests/checks/compile_fail.py [NAME...]
"""
import re
import sys

from common import INCLUDE, ROOT, files, in_parallel, run

COMMAND = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror=unused-result", "-I", INCLUDE,
           "-I", "tests", "-fsyntax-only", "-fdiagnostics-plain-output", "-x", "c++", "-"]


def check(path):
    text = (ROOT / path).read_text()
    expected = re.search(r"\A(?://.*\n){0,2}?// error: (.+)\n", text)
    if not expected:
        return ["one of the first three lines must be `// error: REGEX`"]
    lines = text.splitlines()
    wrong = [n for n, line in enumerate(lines) if line.endswith("// wrong")]
    if len(wrong) != 1:
        return [f"{len(wrong)} lines end in `// wrong`; there must be one"]
    right = lines[:wrong[0]] + [""] + lines[wrong[0] + 1:]
    code, output = run(COMMAND, "\n".join(right) + "\n")
    if code != 0:
        return ["does not compile without its wrong line either:", output]
    code, output = run(COMMAND, text)
    if code == 0:
        return ["compiles"]
    if not re.search(expected[1], output):
        return [f"fails, but no message matches: {expected[1]}", output]
    return []


def results(names=()):
    paths = [path for path in files("tests/compile_fail/*.cpp") if not names or path.stem in names]
    yield from in_parallel(lambda path: (f"compile_fail: {path.stem}", check(path)), paths)


if __name__ == "__main__":
    bad = [(name, lines) for name, lines in results(sys.argv[1:]) if lines]
    for name, lines in bad:
        print(name, *lines, sep="\n    ")
    sys.exit(bool(bad))
