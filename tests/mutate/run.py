#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Changes the core in one place at a time, and counts the changes that no test notices.

usage: run.py [--list] [--file NAME...] [--sample N [--seed S]] [--only ID...]

Each survivor is a missing test or a needless line. The mutants of a header (see mutants.py) are run
with its tests, cheap ones first, until one fails, crashes or hangs: then the mutant is killed. What
all of them let pass is tried with the sanitizers before it counts as a survivor. The changed header
lies in a folder of its own before include/, the tree is never touched.

Names of headers are as in admission or lease; IDs as --list prints them. The mutants in
equivalent.txt behave as the original does, for the reason that stands there; they are not tried.
"""
import argparse
import collections
import importlib.util
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "checks")]
sys.dont_write_bytecode = True
from common import INCLUDE, ROOT, files, in_parallel  # noqa: E402
from mutants import layers_of, mutants_of, with_all  # noqa: E402

found = importlib.util.spec_from_file_location("bugs_run", HERE.parent / "bugs/run.py")
bugs = importlib.util.module_from_spec(found)
found.loader.exec_module(bugs)

ASAN = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-sanitize=function")
TSAN = ("-fsanitize=thread",)


def plain(*names):
    return [(name, ()) for name in names]


def sanitized(flags, *names):
    return [(name, flags) for name in names]


# Cheap ones first: those that compile fast, then those that see much.
MUX = [*plain("random/small_programs", "faults/fairness", "faults/cancellation", "faults/closing",
              "faults/lifetime", "faults/resumption", "faults/guards", "random/model_walk_shards",
              "faults/keyed_storage", "faults/semantics", "allocation_test", "faults/no_memory",
              "faults/seen_elsewhere", "random/found_programs", "random/model_walk", "random/model_walk_keys",
              "stress/mux_stress_test", "stress/handover_stress", "schedules/mux_schedules"),
       *sanitized(ASAN, "faults/lifetime", "faults/cancellation", "faults/closing",
                  "faults/resumption", "faults/keyed_storage", "random/model_walk_shards"),
       *sanitized(TSAN, "stress/mux_stress_test")]
RUNTIME = [*plain("task_test", "spawn_test", "event_loop_test", "manual_event_loop_test",
                  "sync_wait_test", "task_group_test", "when_all_test", "context_test",
                  "loop_thread_test", "faults/resumption", "faults/lifetime",
                  "stress/loop_stress_test", "schedules/loop_schedules"),
           *sanitized(ASAN, "task_test", "spawn_test", "event_loop_test", "task_group_test",
                      "when_all_test"),
           *sanitized(TSAN, "stress/loop_stress_test")]
LEASES = [*plain("distributed_lock_test", "faults/lease_doubt", "faults/lease_end",
                 "faults/lease_corners", "faults/lease_moments", "faults/lease_renewal", "faults/lease_waiting",
                 "faults/lease_hooks", "acquired_lock_test", "distributed_lock_calls_test",
                 "loop_call_test", "lock_backend_test", "faults/lease_seen_elsewhere",
                 "programs/lease_fork", "random/lease_walk", "stress/lease_moved_backend",
                 "stress/lease_stress"),
          *sanitized(ASAN, "faults/lease_end", "faults/lease_hooks", "faults/lease_corners",
                     "distributed_lock_calls_test", "stress/lease_stress"),
          *sanitized(TSAN, "stress/lease_stress")]
RECORDS = [*plain("request_record_test", "deadlock_test", "random/deadlock_walk",
                  "stress/deadlock_stress"),
           *sanitized(ASAN, "request_record_test", "deadlock_test", "random/deadlock_walk"),
           *sanitized(TSAN, "stress/deadlock_stress")]
OBSERVERS = [*plain("random/observers_walk", "stress/observers_stress"),
             *sanitized(ASAN, "random/observers_walk"),
             *sanitized(TSAN, "stress/observers_stress")]
REDLOCK = [*plain("redlock_rules_test", "redlock_test", "faults/redlock_releases",
                  "faults/redlock_renewals", "faults/redlock_ends", "faults/redlock_wipes",
                  "faults/redlock_mixes", "faults/redlock_no_memory", "random/redlock_tokens"),
           *sanitized(ASAN, "redlock_test", "faults/redlock_ends", "faults/redlock_renewals")]

# Which tests are to notice a change of a header: some of its own, then a group.
HEADERS = {
    "intrusive_list": (["admission_test", "event_loop_test"], MUX),
    "admission": (["admission_test"], MUX),
    "intrusive_hash": (["intrusive_hash_test"], MUX),
    "entry": (["allocation_test"], MUX),
    "shard_set": ([], MUX),
    "keys": (["faults/guards"], MUX),
    "mux_core": ([], MUX),
    "mux_operations": ([], MUX),
    "mux_guard": (["faults/guards"], MUX),
    "reentrancy": (["faults/semantics"], MUX),
    "lock_awaiter": (["faults/cancellation"], MUX),
    "lock_waiter": (["faults/cancellation"], MUX),
    "lock_operation": (["faults/guards"], MUX),
    "asyncmux": (["faults/guards"], MUX),
    "deadlock_detector": (["deadlock_test", "allocation_test"], RECORDS),
    "record_lists": (["deadlock_test", "allocation_test"], RECORDS),
    "request_record": (["deadlock_test"], RECORDS),
    "lock_records": ([], RECORDS),
    "long_holds": (["request_record_test"], []),
    "counting": (["counting_test"], OBSERVERS),
    "tracing": (["tracing_test"], OBSERVERS),
    "trace_json": (["tracing_test"], OBSERVERS),
    "trace_event": (["tracing_test"], OBSERVERS),
    "in_quotes": (["error_test"], []),
    "timer_heap": (["random/timer_heap_random_test"], RUNTIME),
    "loop_base": (["event_loop_test", "manual_event_loop_test"], RUNTIME),
    "sleep": (["manual_event_loop_test"], RUNTIME),
    "resume_queue": (["faults/resumption"], RUNTIME),
    "task": ([], RUNTIME),
    "task_root": (["spawn_test"], RUNTIME),
    "root_list": (["spawn_test"], RUNTIME),
    "when_all": (["when_all_test"], RUNTIME),
    "task_group": (["task_group_test"], RUNTIME),
    "event_loop": (["event_loop_test"], RUNTIME),
    "manual_event_loop": (["manual_event_loop_test"], RUNTIME),
    "core_event": (["faults/lease_end"], LEASES),
    "backend_request": ([], LEASES),
    "background_release": (["faults/lease_corners"], LEASES),
    "store_state": (["faults/lease_wait_trouble"], LEASES),
    "lock_core": ([], LEASES),
    "lease_terms": ([], LEASES),
    "lease": ([], LEASES),
    "acquire": (["faults/lease_waiting"], LEASES),
    "lease_calls": ([], LEASES),
    "lock_calls": (["distributed_lock_calls_test"], LEASES),
    "loop_call": (["loop_call_test"], LEASES),
    "loop_gate": (["loop_call_test"], LEASES),
    "wake_point": ([], LEASES),
    "lease_counters": (["lease_counters_test"], OBSERVERS),
    "redlock": ([], REDLOCK),
    "redlock_agenda": ([], REDLOCK),
    "redlock_call": ([], REDLOCK),
    "redlock_core": ([], REDLOCK),
    "redlock_crowds": ([], REDLOCK),
    "redlock_gaps": ([], REDLOCK),
    "redlock_nodes": ([], REDLOCK),
    "redlock_round": ([], REDLOCK),
    "redlock_trace": ([], REDLOCK),
    "redlock_traces": ([], REDLOCK),
    "redlock_vote": ([], REDLOCK),
    "memory_backend": (["memory_backend_test", "schedules/backend_schedules"], LEASES),
}

COMPILER = ["clang++-19", "-std=c++20", "-O0", "-w", "-pthread", "-D_GLIBCXX_ASSERTIONS",
            '-DAMUX_PROJECT_VERSION="0"', "-ferror-limit=0"]
# The part of their programs that is run; and what they are linked with.
SCHEDULES = {"schedules/mux_schedules": "0.005", "schedules/loop_schedules": "0.2",
             "schedules/backend_schedules": "0.2"}
# How long random tests are, where not the twentieth part of what they are: these are cheap.
SCALES = {"random/deadlock_walk": "1", "random/redlock_tokens": "1", "random/observers_walk": "0.5",
          "stress/deadlock_stress": "1"}
EXPLORER = [f"schedules/{name}" for name in ("explorer", "fibre", "interposed", "mux_program")]
SUPPORT = tuple(map(str, files("tests/support/*.cpp")))


def path_of(name):
    """As it is included: amux/detail/lease.hpp."""
    for folder in ("amux/detail", "amux"):
        if (INCLUDE / folder / f"{name}.hpp").is_file():
            return f"{folder}/{name}.hpp"
    sys.exit(f"run.py: there is no header {name}")


def steps_of(name):
    first, group = HEADERS[name]
    steps = plain(*first)
    return steps + [step for step in group if step not in steps]


def run(*command):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                          errors="replace")


class Bench:
    """What is done once: headers precompiled, and tests/support compiled."""

    def __init__(self, work, steps):
        self.work = work
        self.limits = {step: None for step in steps}
        self.locks = {step: threading.Lock() for step in steps}
        flag_sets = sorted({flags for _, flags in steps})
        self.folders = {flags: work / f"flags{number}" for number, flags in enumerate(flag_sets)}
        standard = sorted({line for path in files("include/**/*.hpp", "tests/**/*.[ch]pp")
                           for line in re.findall(r"^#include <(?:\w+|catch2/.*)>$",
                                                  (ROOT / path).read_text(), re.M)})
        chosen = 'inline const int amux_mutant = std::atoi(std::getenv("AMUX_MUTANT"));'
        for flags, folder in self.folders.items():
            folder.mkdir()
            (folder / "all.hpp").write_text("\n".join([*standard, "#include <cstdlib>", chosen]))
            self.must(run(*COMPILER, *flags, "-x", "c++-header", folder / "all.hpp", "-o",
                          folder / "all.pch"))
            for source in SUPPORT:
                self.must(run(*self.compile(flags), "-I", INCLUDE, "-I", ROOT / "tests", "-c",
                              ROOT / source, "-o", folder / (pathlib.Path(source).stem + ".o")))

    @staticmethod
    def must(done):
        if done.returncode != 0:
            sys.exit("run.py: without a change it does not compile:\n" + done.stdout[-3000:])

    def compile(self, flags):
        return [*COMPILER, *flags, "-include-pch", self.folders[flags] / "all.pch"]

    def build(self, step, folder, header=None, text=None):
        """None, or what the compiler says. The program is folder/test."""
        name, flags = step
        if header:
            changed = folder / header
            changed.parent.mkdir(parents=True, exist_ok=True)
            changed.write_text(text)
        objects = [self.folders[flags] / (pathlib.Path(source).stem + ".o") for source in SUPPORT]
        for source in [name, *(EXPLORER if name in SCHEDULES else ())]:
            objects.append(folder / (pathlib.Path(source).name + ".o"))
            done = run(*self.compile(flags), "-I", folder, "-I", INCLUDE, "-I", ROOT / "tests",
                       "-c", ROOT / f"tests/{source}.cpp", "-o", objects[-1])
            if done.returncode != 0:
                return done.stdout
        main = () if name.startswith("programs/") else ("-lCatch2Main",)
        done = run("clang++-19", *flags, *objects, *main, "-lCatch2", "-pthread", "-ldl", "-o",
                   folder / "test")
        return done.stdout if done.returncode != 0 else None

    @staticmethod
    def test(step, folder, limit, number=0):
        return bugs.run_test(folder / "test", "~[.]", step[1], limit, "--abort", AMUX_SEED="1",
                             AMUX_MUTANT=str(number), AMUX_TEST_SCALE=SCALES.get(step[0], "0.05"),
                             AMUX_SCHEDULES=SCHEDULES.get(step[0], "1"),
                             ASAN_OPTIONS="hard_rss_limit_mb=2000")

    def limit(self, step):
        """How long the test may take: a hang is noticed, too."""
        with self.locks[step]:
            if self.limits[step] is None:
                with tempfile.TemporaryDirectory(dir=self.work) as folder:
                    folder = pathlib.Path(folder)
                    trouble = self.build(step, folder)
                    if trouble:
                        sys.exit(f"run.py: without a change: {trouble[-3000:]}")
                    self.limits[step] = self.green_limit(step, folder)
            return self.limits[step]

    def green_limit(self, step, folder):
        verdict, output, seconds = self.test(step, folder, 300)
        if verdict != "green":
            sys.exit(f"run.py: without a change {step[0]} is {verdict}:\n{output[-3000:]}")
        return max(5.0, 10 * seconds)

    def judge_alone(self, mutant, steps):
        """Compiles it by itself: ('killed' | 'does not compile' | 'survived', how)."""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            folder = pathlib.Path(folder)
            for step in steps:
                if self.build(step, folder, mutant.header, mutant.text):
                    return "does not compile", step[0]
                verdict, _, _ = self.test(step, folder, self.limit(step))
                if verdict != "green":
                    return "killed", f"{described(step)} {verdict}"
        return "survived", ""

    def build_together(self, step, folder, text, layer):
        """Builds the header in which each can be chosen. Returns the list of those that cannot."""
        odd = []
        while layer:
            together = with_all(text, layer)
            said = self.build(step, folder, layer[0].header, together)
            if said is None:
                break
            lines = together.split("\n")
            bad = set()
            for line, column in re.findall(rf"^{re.escape(str(folder / layer[0].header))}:(\d+):"
                                           r"(\d+): (?:fatal )?(?:error|note: in inst)", said, re.M):
                before = lines[int(line) - 1][:int(column)]
                numbers = re.findall(r"amux_mutant == (\d+)", before) or \
                    re.findall(r"amux_mutant == (\d+)", lines[int(line) - 1])
                bad.update(map(int, numbers[-1:]))
            worse = [m for m in layer if m.number in bad] or list(layer)
            odd += worse
            layer[:] = [m for m in layer if m not in worse]
        return odd

    def judge_together(self, layer, text, steps, tell):
        """Compiles all into one program for each step. Returns those that must be compiled alone."""
        alive, odd = list(layer), []
        for step in steps:
            if not alive:
                break
            with tempfile.TemporaryDirectory(dir=self.work) as folder:
                folder = pathlib.Path(folder)
                more = self.build_together(step, folder, text, alive)
                odd += more
                if not alive:
                    break
                limit = self.green_limit(step, folder)

                def one(mutant):
                    verdict, _, _ = self.test(step, folder, limit, mutant.number)
                    if verdict == "green":
                        return True
                    tell(mutant, "killed", f"{described(step)} {verdict}")
                    return False
                alive = [m for m, lives in zip(alive, in_parallel(one, alive)) if lives]
        for mutant in alive:
            tell(mutant, "survived", "")
        return odd


def described(step):
    return step[0] + (" " + step[1][0] if step[1] else "")


def equivalents():
    """{(header, before, after): reason}"""
    known = {}
    header = None
    for block in (HERE / "equivalent.txt").read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines and lines[0].startswith("file: "):
            header = lines.pop(0).removeprefix("file: include/")
        if not lines:
            continue
        befores = [line[2:] for line in lines if line.startswith("- ")]
        afters = [line[2:] for line in lines if line.startswith("+ ")]
        reason = " ".join(line for line in lines if line[:2] not in ("- ", "+ "))
        if len(befores) != 1 or not afters or not reason:
            sys.exit(f"equivalent.txt: needs one -, some + and a reason:\n{block}")
        for after in afters:
            known[header, befores[0], after] = reason
    return known


def main():
    options = argparse.ArgumentParser(usage=__doc__)
    options.add_argument("--list", action="store_true")
    options.add_argument("--file", nargs="+", default=list(HEADERS))
    options.add_argument("--sample", type=int)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", nargs="+")
    asked = options.parse_args()
    if unknown := [name for name in asked.file if name not in HEADERS]:
        sys.exit(f"run.py: no tests are named for {', '.join(unknown)}")

    known, met = equivalents(), set()
    todo = []
    for name in asked.file:
        header = path_of(name)
        for mutant in mutants_of(header, (INCLUDE / header).read_text()):
            entry = (header, mutant.before, mutant.after)
            if entry in known:
                met.add(entry)
            if asked.only is None or mutant.id in asked.only:
                todo.append((name, mutant, entry in known))
    stale = [entry for entry in known
             if entry not in met and entry[0] in {path_of(name) for name in asked.file}]
    if asked.sample is not None:
        todo = random.Random(asked.seed).sample(todo, min(asked.sample, len(todo)))
    if asked.list:
        for _, mutant, equivalent in todo:
            print(f"{mutant}{'  (equivalent)' if equivalent else ''}")
        return 0

    todo, equal = [t for t in todo if not t[2]], sum(1 for t in todo if t[2])
    names = list(dict.fromkeys(name for name, _, _ in todo))
    steps = list(dict.fromkeys(step for name in names for step in steps_of(name)))
    verdicts = {}
    work = pathlib.Path(tempfile.mkdtemp(prefix="amux-mutants-"))
    try:
        bench = Bench(work, steps)
        print(f"{len(todo)} mutants", flush=True)

        def tell(mutant, verdict, how):
            verdicts[mutant.id] = verdict
            print(f"{mutant.id}: {verdict} {how}", flush=True)
            if verdict == "survived":
                print(mutant, flush=True)

        for name in names:
            header = path_of(name)
            mine = [mutant for its_name, mutant, _ in todo if its_name == name]
            alone = [mutant for mutant in mine if not mutant.form]
            for layer in layers_of([mutant for mutant in mine if mutant.form]):
                alone += bench.judge_together(layer, (INCLUDE / header).read_text(),
                                              steps_of(name), tell)
            in_parallel(lambda m: tell(m, *bench.judge_alone(m, steps_of(name))), alone)
    finally:
        shutil.rmtree(work, ignore_errors=True)

    by_name = collections.defaultdict(collections.Counter)
    for name, mutant, _ in todo:
        by_name[name][verdicts[mutant.id]] += 1
    total = sum(by_name.values(), collections.Counter())
    print()
    for name, count in [*by_name.items(), ("all", total)]:
        print(f"{name:20} {count['killed']:5} killed {count['survived']:4} survived"
              f" {count['does not compile']:4} do not compile")
    print(f"{equal} known as equivalent, not tried")
    print()
    for _, mutant, _ in todo:
        if verdicts[mutant.id] == "survived":
            print(f"SURVIVED {mutant}")
    for header, before, after in stale:
        print(f"FAILED equivalent.txt names what is not there: {header}\n    - {before}\n"
              f"    + {after}")
    print(f"{total['killed']} passed, {total['survived'] + len(stale)} failed")
    return bool(total["survived"] or stale)


if __name__ == "__main__":
    sys.exit(main())
