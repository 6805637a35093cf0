#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Runs the fuzz targets: first what is in their corpora, then for some seconds what libFuzzer makes of it.

usage: run.py [--merge] [TARGET...]

Each tests/fuzz/NAME.cpp is a target: a file with LLVMFuzzerTestOneInput, which aborts when something is not as it
should be. A line `// libFuzzer: OPTION...` in it gives options of its own. Its corpus is tests/fuzz/corpus/NAME.hex,
one input a line. So a new target is one new file; `--merge` makes its corpus.

    --merge     do not fuzz: write the corpus anew, the fewest inputs that reach all that is reached
                by it and by what the last run has found

Environment: AMUX_FUZZ_SECONDS, for each target (default 20; 0 only replays the corpus), AMUX_BUILD_ROOT,
AMUX_JOBS. The last line is "N passed, N failed", a target each.
"""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "checks"))
sys.dont_write_bytecode = True
from common import ROOT, WARNINGS, files, in_parallel  # noqa: E402

SECONDS = int(os.environ.get("AMUX_FUZZ_SECONDS", "20"))
WORK = pathlib.Path(os.environ.get("AMUX_BUILD_ROOT", ROOT / "build")).resolve() / "fuzz"
MOST_INPUTS = 250  # of a corpus
# To compile for speed pays after some minutes only.
COMPILE = ["clang++-19", "-std=c++20", "-O2" if SECONDS > 300 else "-O0", "-g1", *WARNINGS,
           "-fno-omit-frame-pointer", "-D_GLIBCXX_ASSERTIONS", "-pthread",
           "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all",
           "-I", "include", "-I", "tests"]


class Failed(Exception):
    pass


def run(command, log, **more):
    with open(log, "w", errors="replace") as output:
        return subprocess.run([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL,
                              stdout=output, stderr=subprocess.STDOUT, **more).returncode


def last_lines(log, count=60):
    return "\n".join(pathlib.Path(log).read_text(errors="replace").splitlines()[-count:])


class Target:
    def __init__(self, source):
        self.source = source
        self.name = source.stem
        self.corpus = ROOT / "tests/fuzz/corpus" / f"{self.name}.hex"
        self.folder = WORK / self.name
        self.program = self.folder / self.name
        self.seeds, self.found = self.folder / "seeds", self.folder / "found"
        options = re.search(r"^// libFuzzer: (.*)$", (ROOT / source).read_text(), re.M)
        self.options = options[1].split() if options else []

    def build(self):
        shutil.rmtree(self.seeds, ignore_errors=True)
        for folder in (self.seeds, self.found):
            folder.mkdir(parents=True, exist_ok=True)
        if self.corpus.exists():
            for line in self.corpus.read_text().splitlines():
                data = bytes.fromhex(line)
                (self.seeds / hashlib.sha1(data).hexdigest()).write_bytes(data)
        log = self.folder / "build.log"
        if run([*COMPILE, self.source, "tests/support/seeded_bits.cpp", "-o", self.program], log):
            raise Failed("does not compile:\n" + last_lines(log))

    def fuzz(self):
        log = self.folder / "fuzz.log"
        length = ["-runs=0"] if SECONDS == 0 else [f"-max_total_time={SECONDS}"]
        shutil.rmtree(self.found)
        self.found.mkdir()
        start = time.time()
        code = run([self.program, *length, *self.options, "-timeout=20", "-print_final_stats=1",
                    f"-artifact_prefix={self.folder}/", self.found, self.seeds], log)
        text = log.read_text(errors="replace")
        if code == 0:
            runs = re.search(r"^Done (\d+) runs", text, re.M)
            state = re.findall(r"cov: \d+ ft: \d+ corp: \S+", text)
            return f"{runs[1]} runs, {state[-1] if state else ''}"
        inputs = [path for path in self.folder.iterdir() if path.stat().st_mtime >= start
                  and re.match(r"(crash|leak|timeout|oom|slow-unit)-", path.name)]
        raise Failed(last_lines(log) + "".join(
            f"\nagain:        {self.program} {path}"
            f"\nto keep it:   echo {path.read_bytes().hex()} >>{self.corpus.relative_to(ROOT)}"
            for path in inputs))

    def merge(self):
        merged, log = self.folder / "merged", self.folder / "merge.log"
        # How often code is reached makes states that are worth an input, up to a point.
        for counters in (1, 0):
            shutil.rmtree(merged, ignore_errors=True)
            merged.mkdir()
            if run([self.program, "-set_cover_merge=1", f"-use_counters={counters}", *self.options,
                    merged, self.seeds, self.found], log):
                raise Failed(last_lines(log))
            inputs = sorted((path.read_bytes() for path in merged.iterdir()),
                            key=lambda data: (len(data), data))
            if len(inputs) <= MOST_INPUTS:
                break
        self.corpus.parent.mkdir(exist_ok=True)
        self.corpus.write_text("".join(data.hex() + "\n" for data in inputs))
        return f"{len(inputs)} inputs, {sum(map(len, inputs))} bytes"


def main():
    names = [word for word in sys.argv[1:] if word != "--merge"]
    targets = [Target(source) for source in files("tests/fuzz/*.cpp")
               if not names or source.stem in names]

    def attempt(work, target):
        try:
            return target, work(target), None
        except Failed as trouble:
            return target, None, str(trouble)

    built = list(in_parallel(lambda t: attempt(Target.build, t), targets))
    work = Target.merge if "--merge" in sys.argv[1:] else Target.fuzz
    done = [failure for failure in built if failure[2]]
    done += in_parallel(lambda t: attempt(work, t[0]), [b for b in built if not b[2]])
    failed = 0
    for target, result, trouble in done:
        if trouble:
            failed += 1
            print(f"FAILED {target.name}:\n    " + trouble.replace("\n", "\n    "))
        else:
            print(f"{target.name}: {result}")
    passed = len(done) - failed
    print(f"{passed} passed, {failed} failed")
    return failed != 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
