#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Without this file nothing shows that the tests of amuxctl can fail.

usage: mistakes.py [NAME...]

As tests/bugs/run.py, with tests/amuxctl/bugs/NAME.bug: `file` is one of examples/amuxctl, `source` a program in Python, and
`test` one of its tests. That one must be green as it is, and red, or hang, with the mistake.
"""
import ctypes
import importlib.util
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
found = importlib.util.spec_from_file_location("bugs_run", HERE.parent / "bugs/run.py")
bugs = importlib.util.module_from_spec(found)
found.loader.exec_module(bugs)
ROOT, files, in_parallel, Broken = bugs.ROOT, bugs.files, bugs.in_parallel, bugs.Broken

PROGRAM = "examples/amuxctl"


def compile_file(source, folder):
    made = folder / (source.stem + ".o")
    bugs.run([*bugs.COMPILE, "-I", ROOT / "include", "-c", source, "-o", made])
    return made


def link(objects, program):
    bugs.run([bugs.COMPILER, *objects, "-lhiredis", "-pthread", "-o", program])
    return program


def test(bug, program, seconds):
    """As bugs.run_test, which starts a program with the name of a test."""
    script = program.with_suffix(".sh")
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / bug.sources[0]}" "{program}" "$@"\n')
    script.chmod(0o755)
    return bugs.run_test(script, bug.test, bug.flags, seconds)


def try_bug(bug, objects, work):
    folder = work / bug.name
    shutil.copytree(ROOT / PROGRAM, folder)
    right = link(objects.values(), folder / "right")
    verdict, output, seconds = test(bug, right, 100)
    if verdict != "green":
        raise Broken(f"without the mistake the test is {verdict}:\n{output[-3000:]}")
    mistaken = folder / pathlib.Path(bug.file).name
    mistaken.write_text(bug.mistaken((ROOT / bug.file).read_text()))
    made = {**objects, mistaken.stem: compile_file(mistaken, folder)}
    wrong = link(made.values(), folder / "wrong")
    verdict, output, seconds = test(bug, wrong, bug.timeout or max(10.0, 20 * seconds))
    print(f"{bug.name}: {verdict} after {seconds:.1f} s", flush=True)
    if verdict == "green":
        raise Broken(f"nobody notices: {bug.what}")


def end_what_is_left(limit=10):
    """What a test that hung has left falls to us, one generation after the other."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not children:
            return
        for child in children:
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), os.WNOHANG)


def main():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    wanted = [path for path in files("tests/amuxctl/bugs/*.bug") if path.stem in sys.argv[1:] or not sys.argv[1:]]
    failures = []
    with tempfile.TemporaryDirectory(prefix="amux-bugs-") as name:
        work = pathlib.Path(name)
        sources = [ROOT / path for path in files(f"{PROGRAM}/*.cpp")]
        objects = dict(zip([s.stem for s in sources], in_parallel(lambda s: compile_file(s, work), sources)))

        def attempt(path):
            try:
                try_bug(bugs.Bug(path), objects, work)
            except Broken as trouble:
                failures.append(path)
                print(f"FAILED {path.stem}: {trouble}", flush=True)
        in_parallel(attempt, wanted)
        end_what_is_left()
    print(f"{len(wanted) - len(failures)} passed, {len(failures)} failed")
    return bool(failures) or not wanted


if __name__ == "__main__":
    sys.exit(main())
