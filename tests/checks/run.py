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
from common import INCLUDE, ROOT, WARNINGS, files, in_parallel, run, usable

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
    # What is in detail/ the other two compilers see through the headers that include it.
    jobs = [(compiler, f"{name} alone", f"#include <{name}>\n" * 2)
            for compiler in ("g++", "clang++-14", "clang++-19") for name in usable()
            if compiler == "g++" or "/detail/" not in name]
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
    """Every header, and the examples, which use them as people do, in two files instead of fifty: most of its time
    clang-tidy looks at what a file includes."""
    if not shutil.which("clang-tidy-19"):
        yield "tidy", ["clang-tidy-19 is not installed"]
        return

    examples = files("examples/*.cpp")
    heavy = [path for path in examples if "<boost/" in (ROOT / path).read_text()]

    with tempfile.TemporaryDirectory() as folder:
        def joined(name, included, members):
            """A file that includes `included`, and what `members` do, and then each member in its namespace."""
            lines = [f"#include <{header}>" for header in included]
            lines += sorted({line for path in members for line in
                             re.findall(r"^#include .*", (ROOT / path).read_text(), re.M)} - {*lines})
            for path in members:
                # A copy whose name is a header's, since clang-tidy complains of a source that is included.
                copy = pathlib.Path(folder, "examples", path.name).with_suffix(".hpp")
                copy.parent.mkdir(exist_ok=True)
                copy.write_text((ROOT / path).read_text())
                lines += [f"namespace example_{path.stem} {{", f'#include "{copy}"', "}"]
            made = pathlib.Path(folder, name)
            made.write_text("\n".join(lines) + "\n")
            return made

        def one(path):
            code, output = run(["clang-tidy-19", "--quiet", "--config-file=.clang-tidy",
                                "--header-filter=include/amux/|examples/", "--warnings-as-errors=*", path, "--",
                                "-std=c++20", "-I", INCLUDE, "-I", "tests", "-I", "examples"])
            return f"tidy: {path.name}", [] if code == 0 else [
                line for line in output.splitlines() if "warnings generated" not in line]
        yield from in_parallel(one, [joined("all_headers.cpp", usable(), heavy),
                                     joined("examples.cpp", [], [path for path in examples if path not in heavy])])


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
