#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Everything that can be checked without running a test.

usage: run.py [CHECK...]

Checks: layers snippets words links doxygen format headers light atomics instructions compile_fail
tidy
"""
import pathlib
import platform
import re
import shutil
import sys
import tempfile

import compile_fail
import doxygen
import instructions
import layers
import links
import snippets
import words
from common import INCLUDE, WARNINGS, files, in_parallel, run, usable

LIGHT_LIMIT = 48000

# Each check yields (name, complaints); no complaint is a pass.


def list_check(name, function):
    yield name, function()


def format_check():
    """One formatter, one version: the next one formats otherwise."""
    sources = files(*(f"{folder}/**/*.{ending}" for folder in ("include", "tests", "examples")
                      for ending in ("hpp", "cpp")))

    def one(path):
        code, output = run(["clang-format-19", "--dry-run", "-Werror", path])
        return [] if code == 0 else [output.splitlines()[0] if output else f"{path}: {code}",
                                     f"run: clang-format-19 -i {path}"]
    complaints = [line for lines in in_parallel(one, sources) for line in lines]
    yield "format", complaints


def headers_check():
    """A header that compiles only after another one works by luck, until someone sorts includes."""
    def one(job):
        compiler, name, text = job
        code, output = run([compiler, "-std=c++20", *WARNINGS, "-I", INCLUDE, "-fsyntax-only",
                            "-x", "c++", "-"], text)
        return f"headers: {name}, {compiler}", [] if code == 0 else [output]
    jobs = [(compiler, f"{name} alone", f"#include <{name}>\n" * 2)
            for compiler in ("g++", "clang++-14", "clang++-19") for name in usable()]
    # What others' headers make of these macros is their affair, so those come before; and the whole standard library,
    # whose names are found for its types: `quoted(key)` is ours only until somebody includes <iomanip>.
    foreign = ["bits/stdc++.h"] + sorted({name for header in usable() for name in re.findall(
        r"^#include <(?!amux/)([^>]+)>$", (INCLUDE / header).read_text(), re.M)})
    standard = [f"#if __has_include(<{name}>)\n#include <{name}>\n#endif" for name in foreign]
    jobs.append(("g++", "all, after the macros min and max of <windows.h>", "\n".join(
        standard + ["#define min(a, b) broken", "#define max(a, b) broken"]
        + [f"#include <{name}>" for name in usable()]) + "\n"))
    yield from in_parallel(one, jobs)


def light_check():
    """Users pay for every line in every file that locks something."""
    if not (INCLUDE / "amux/asyncmux.hpp").exists():
        print("light: no asyncmux.hpp yet, skipped")
        return
    code, output = run(["g++", "-std=c++20", "-E", "-P", "-I", INCLUDE,
                        INCLUDE / "amux/asyncmux.hpp"])
    lines = output.count("\n")
    print(f"light: asyncmux.hpp is {lines} lines after the preprocessor")
    yield "light", [] if code == 0 and lines < LIGHT_LIMIT else [
        f"asyncmux.hpp: {lines} preprocessed lines, must stay below {LIGHT_LIMIT}"]


def atomics_check():
    """A mux for one thread pays for none: no atomic instruction stands in what it compiles to. (The records of requests,
    out of line and only there by an option, are shared with detectors of any thread.)"""
    source = """
        #include <amux/asyncmux.hpp>
        #include <amux/counting.hpp>
        using mux = amux::asyncmux<int, amux::%s>;
        void use(mux& m, mux::guard& g, const int (&keys)[3])
        {
            g = m.try_lock(1);
            g.downgrade();
            g = m.try_lock_all(keys);
            g = m.try_lock();
            g.unlock();
            m.close();
            (void)m.tracked_keys();
        }
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        print("atomics: reads the instructions of x86 only, skipped")
        return
    for policy, wanted in (("single_threaded", False), ("multi_threaded", True),
                           ("counting<amux::single_threaded>", False)):
        code, output = run(["g++", "-std=c++20", "-O2", "-DNDEBUG", "-I", INCLUDE, "-S", "-o", "-",
                            "-x", "c++", "-"], source % policy)
        functions = re.split(r"^(?=_Z\w+(?:\.\w+)*:$)", output, flags=re.M)
        # Whoever calls the second has an instruction of its own.
        plain = "".join(f for f in functions if not re.match(r"\w*(?:lock_records|wait_and_lock)", f))
        found = re.findall(r"^\t(?:lock\b.*|xchg\w*\t.*\(.*|mfence)$", plain, re.M)
        if code != 0:
            yield f"atomics: {policy}", [output]
        else:
            yield f"atomics: {policy}", [] if bool(found) == wanted else [
                *found, f"{len(found)} atomic instructions"]


def tidy_check():
    """One file with every header, and the examples, which use them as people do."""
    if not shutil.which("clang-tidy-19"):
        yield "tidy", ["clang-tidy-19 is not installed"]
        return

    with tempfile.TemporaryDirectory() as folder:
        everything = pathlib.Path(folder) / "all_headers.cpp"
        everything.write_text("".join(f"#include <{name}>\n" for name in usable()))

        def one(path):
            code, output = run(["clang-tidy-19", "--quiet", "--config-file=.clang-tidy",
                                "--warnings-as-errors=*", path, "--", "-std=c++20",
                                "-I", INCLUDE, "-I", "tests"])
            return f"tidy: {path.name}", [] if code == 0 else [
                line for line in output.splitlines() if "warnings generated" not in line]
        # Of the services one is enough: Beast alone takes a minute.
        examples = [path for path in files("examples/*.cpp") if path.stem != "payments_beast"]
        yield from in_parallel(one, [everything, *examples])


CHECKS = {
    "layers": lambda: list_check("layers", layers.check),
    "snippets": lambda: list_check("snippets", snippets.check),
    "words": lambda: list_check("words", words.check),
    "links": lambda: list_check("links", links.check),
    "doxygen": lambda: list_check("doxygen", doxygen.check),
    "format": format_check,
    "headers": headers_check,
    "light": light_check,
    "atomics": atomics_check,
    "instructions": instructions.check,
    "compile_fail": compile_fail.results,
    "tidy": tidy_check,
}


def main():
    passed = failed = 0
    for name in sys.argv[1:] or CHECKS:
        for what, complaints in CHECKS[name]():
            if complaints:
                failed += 1
                print(f"FAILED {what}")
                for line in complaints:
                    print("    " + line.rstrip().replace("\n", "\n    "))
            else:
                passed += 1
        print(f"{name}: done", flush=True)
    print(f"{passed} passed, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
