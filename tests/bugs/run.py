#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Puts known mistakes back, one at a time, and requires that the test named for each goes red.

usage: run.py [NAME...]

A test that cannot fail proves nothing. Each tests/bugs/NAME.bug holds one plausible mistake:

    what: a cancelled request leaves those behind it waiting
    file: include/amux/detail/admission.hpp
    source: tests/cancel_test.cpp            the test files to compile, several with spaces
    test: asyncmux: a stopped waiter*        Catch2's test specification
    flags: -fsanitize=address                optional; for the compiler
    timeout: 60                              optional; seconds
    --- search
    text that stands in the file exactly once
    --- replace
    what the mistake makes of it
    --- end

Several pairs of search and replace may follow each other. With the mistake the headers
must compile, and the test must fail, crash or hang with it; without it the same test is green. Of a test file only the
cases that are named are compiled, and what does not see the mistake is precompiled (see precompiled.py).
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "checks"))
sys.dont_write_bytecode = True
from common import INCLUDE, JOBS, ROOT, files, in_parallel  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from precompiled import PrecompiledHeaders, kind_of, seen_by  # noqa: E402


class Broken(Exception):
    """The entry itself is wrong, whatever the test says."""


class Bug:
    def __init__(self, path):
        self.name = path.stem
        text = (ROOT / path).read_text()
        head, _, rest = text.partition("--- search\n")
        fields = dict(re.findall(r"^(\w+):[ \t]*(.*?)[ \t]*$", head, re.M))
        unknown = set(fields) - {"what", "file", "source", "test", "flags", "timeout"}
        missing = {"what", "file", "source", "test"} - set(fields)
        if unknown or missing:
            raise Broken(f"unknown fields {sorted(unknown)}, missing fields {sorted(missing)}")
        self.what, self.file, self.test = fields["what"], fields["file"], fields["test"]
        self.sources = tuple(fields["source"].split())
        self.flags = tuple(fields.get("flags", "").split())
        self.timeout = float(fields.get("timeout", 0))
        self.pairs = re.findall(r"--- search\n(.*?)^--- replace\n(.*?)(?=^--- (?:search|end)$)",
                                "--- search\n" + rest, re.M | re.S)
        if not self.pairs or not text.rstrip().endswith("--- end"):
            raise Broken("needs --- search, --- replace and --- end")
        for source in self.sources:
            if not (ROOT / source).is_file():
                raise Broken(f"there is no {source}")

    def mistaken(self, text):
        for search, replacement in self.pairs:
            if text.count(search) != 1:
                raise Broken(f"found {text.count(search)} times in {self.file}, must be once:\n"
                             f"{search}")
            text = text.replace(search, replacement)
        return text


def sources_of(bug):
    return [*bug.sources, *map(str, files("tests/support/*.cpp"))]


def compile_object(source, tests, flags, folder, *first):
    """The cases of `source` that `tests` name, as an object in `folder`; `first` are options."""
    path = folder / source.replace("/", "_")
    path.write_text(with_cases(source, tests)[0])
    made = path.with_suffix(".o")
    run([*COMPILE, *flags, *first, "-I", INCLUDE, "-I", ROOT / "tests", "-iquote", (ROOT / source).parent,
         "-c", path, "-o", made])
    return made


# How clang-format writes a test case: it ends with the next brace at the start of a line. Neighbouring literals are one name.
CASE = re.compile(r'^(TEMPLATE_(?:LIST_)?)?TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+).*?^}\n', re.M | re.S)


def with_cases(source, tests):
    """The text of `source` without the cases that `tests` do not name, which halves the time of its compiler, and how
    many stay."""
    wanted = re.compile("|".join(re.escape(test).replace(r"\*", ".*") for test in tests), re.S)
    kept = 0

    def keep_or_drop(case):
        nonlocal kept
        name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', case[2]))
        # Catch2 adds the type to the name of a template.
        if wanted.fullmatch(name) or case[1] and any(test.startswith(name) for test in tests):
            kept += 1
            return case[0]
        return "\n" * case[0].count("\n")
    text = CASE.sub(keep_or_drop, (ROOT / source).read_text())
    return f'#line 1 "{source}"\n{text}', kept


def link(objects, flags, program):
    run([COMPILER, *flags, *LINKER, *objects, "-lCatch2Main", "-lCatch2", "-pthread", "-o", program])
    return program


def compile_with(bug, clean, folder):
    """The test program with the mistake; what does not see the mistaken file is taken from `clean`."""
    header = ROOT / bug.file
    if not header.is_file():
        raise Broken(f"there is no {bug.file}")
    mistaken = folder / bug.file
    mistaken.parent.mkdir(parents=True)
    mistaken.write_text(bug.mistaken(header.read_text()))
    objects, cases = [], 0
    for source in sources_of(bug):
        made = clean.objects[source, bug.flags]
        cases += with_cases(source, [bug.test])[1]
        if header in seen_by(ROOT / source):
            options = clean.precompiled[kind_of(source, bug.flags)].options(header)
            made = compile_object(source, [bug.test], bug.flags, folder, "-I", folder / "include", *options)
        objects.append(made)
    if cases == 0:
        raise Broken(f"there is no case '{bug.test}' in {' '.join(bug.sources)}")
    return link(objects, bug.flags, folder / "tests")


# clang, because it compiles a test at -O0 in little more than half of the time that g++ takes.
COMPILER = os.environ.get("CXX", "clang++-19")
COMPILE = [COMPILER, "-std=c++20", "-O0", "-w", "-pthread", '-DAMUX_PROJECT_VERSION="0"']


# It takes half as long as the usual one.
LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []


def run(command):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace")
    if done.returncode != 0:
        raise Broken("does not compile:\n" + "\n".join(done.stdout.splitlines()[:30]))


# A mistake may allocate without end; the sanitizers reserve address space by the terabyte.
LIMITED = ["sh", "-c", 'ulimit -c 0; ulimit -v 8000000; exec "$0" "$@"']


def run_test(program, test, flags, timeout, *options, **environment):
    """('green' | 'red' | 'hangs', output, seconds)."""
    limited = [] if any("-fsanitize" in flag for flag in flags) else LIMITED
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen([*limited, str(program), test, *options],
                                   stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True,
                                   cwd=program.parent, env={**os.environ, **environment})
        try:
            code = process.wait(timeout)
            verdict = "green" if code == 0 else "red"
        except subprocess.TimeoutExpired:
            verdict = "hangs"
        try:
            os.killpg(process.pid, signal.SIGKILL)  # whatever it started
        except ProcessLookupError:
            pass
        process.wait()
        output.seek(0)
        return verdict, output.read(), time.monotonic() - start


def read_bugs(names):
    """Those of these names, or all; and what is wrong with the rest."""
    bugs, failures = [], []
    paths = {path.stem: path for path in files("tests/bugs/*.bug")}
    for name in dict.fromkeys(names or paths):
        try:
            if name not in paths:
                raise Broken("no such file in tests/bugs")
            bugs.append(Bug(paths[name]))
        except Broken as trouble:
            failures.append(f"{name}: {trouble}")
    return bugs, failures


def or_trouble(make):
    def attempt(*arguments):
        try:
            return make(*arguments)
        except Broken as trouble:
            return trouble
    return attempt


def made_of(keys, make):
    """By several compilers: {key: what `make(number, key)` gives, or the Broken that it raises}"""
    return dict(zip(keys, in_parallel(lambda numbered: or_trouble(make)(*numbered), enumerate(keys))))


class Clean:
    """Without the mistakes: each source is compiled once, each test is run once."""

    def __init__(self, bugs, work):
        self.work, named, kinds = work, {}, {}
        for bug in bugs:
            for source in sources_of(bug):
                named.setdefault((source, bug.flags), set()).add(bug.test)
                kinds.setdefault(kind_of(source, bug.flags), []).append((ROOT / source, ROOT / bug.file))
        self.tests_of = named
        self.precompiled = made_of(kinds, lambda number, kind: PrecompiledHeaders(
            work / f"kind{number}", COMPILE, kind, kinds[kind]))
        self.objects = made_of(named, self.compile)
        builds = {(bug.sources, bug.flags): bug for bug in bugs}
        self.programs = made_of(builds, lambda number, build: self.link(number, builds[build]))
        tests = sorted({(bug.sources, bug.flags, bug.test) for bug in bugs
                        if isinstance(self.programs[bug.sources, bug.flags], pathlib.Path)})
        self.ends = dict(zip(tests, in_parallel(lambda t: run_test(self.programs[t[:2]], t[2], t[1], 300), tests)))

    def compile(self, number, source_and_flags):
        source, flags = source_and_flags
        folder = self.work / f"clean{number}"
        folder.mkdir()
        return compile_object(source, self.tests_of[source, flags], flags, folder,
                              *self.precompiled[kind_of(source, flags)].options())

    def link(self, number, bug):
        objects = [self.objects[source, bug.flags] for source in sources_of(bug)]
        for made in objects:
            if isinstance(made, Broken):
                raise made
        return link(objects, bug.flags, self.work / f"tests{number}")

    def require_green(self, bug):
        program = self.programs[bug.sources, bug.flags]
        if isinstance(program, Broken):
            raise Broken(f"without the mistake: {program}")
        verdict, output, _ = self.ends[bug.sources, bug.flags, bug.test]
        if verdict != "green":
            raise Broken(f"without the mistake the test is {verdict}:\n{output[-3000:]}")

    def limit(self, bug):
        """A hang is red too; twenty times the honest time is a hang."""
        return bug.timeout or max(5.0, 20 * self.ends.get((bug.sources, bug.flags, bug.test), [0])[-1])


# While some wait for the end of a hang, others compile.
COMPILERS = threading.Semaphore(JOBS)


def try_bug(bug, clean):
    """Requires that its test turns red. Raises Broken."""
    clean.require_green(bug)
    folder = clean.work / bug.name
    with COMPILERS:
        program = compile_with(bug, clean, folder)
    verdict, _, seconds = run_test(program, bug.test, bug.flags, clean.limit(bug))
    shutil.rmtree(folder)
    print(f"{bug.name}: {verdict} after {seconds:.1f} s", flush=True)
    if verdict == "green":
        raise Broken(f"nobody notices: {bug.what}")


def main():
    bugs, failures = read_bugs(sys.argv[1:])
    work = pathlib.Path(tempfile.mkdtemp(prefix="amux-bugs-"))
    try:
        clean = Clean(bugs, work)
        bugs.sort(key=clean.limit, reverse=True)
        with concurrent.futures.ThreadPoolExecutor(2 * JOBS) as pool:
            troubles = list(pool.map(lambda bug: or_trouble(try_bug)(bug, clean), bugs))
    finally:
        shutil.rmtree(work, ignore_errors=True)

    passed = troubles.count(None)
    failures += [f"{bug.name}: {trouble}" for bug, trouble in zip(bugs, troubles) if trouble]
    for failure in failures:
        print("FAILED " + failure.rstrip().replace("\n", "\n    "))
    print(f"{passed} passed, {len(failures)} failed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
