#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Which lines and branches of include/ the tests have run, and whether there is a reason for the others.

usage: report.py [--write-docs] [--all]

Reads what the leg clang19 of tests/run.sh has left behind (so run that before), and prints a table. It fails when

  - a line with code in it, or an outcome of a condition, was never reached, and tests/coverage/reasons.txt does not say
    why; up to 15 of them are only told, because a race may miss them in one run;
  - a reason excuses nothing, or its line is not there any more;
  - the figures in docs/testing.md are wrong by more than half a point.

A template counts as run where any instantiation of it ran; one that is never instantiated has lines that were not
reached. A condition that is a constant has no outcomes.

    --write-docs   puts the figures into docs/testing.md
    --all          shows also what is excused

reasons.txt: a paragraph for each reason. Its lines without indentation say it in words; the indented ones say of what:

        amux/clock.hpp | line  | the text of the line
        amux/clock.hpp | true  | if (a condition on this line is never true)
        amux/clock.hpp | false | if (a condition on this line is never false)

`?` instead of ` ` at the beginning of an indented line: reached in some runs only, by threads or the clock.
"""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "checks"))
sys.dont_write_bytecode = True
from common import INCLUDE, ROOT, in_parallel, usable  # noqa: E402

BUILD = pathlib.Path(os.environ.get("AMUX_BUILD_ROOT", ROOT / "build")).resolve() / "clang19"
REASONS = ROOT / "tests/coverage/reasons.txt"
PAGE = ROOT / "docs/testing.md"
MARKED = re.compile(r"(<!-- coverage -->\n).*?(<!-- /coverage -->)", re.S)
TOLERANCE = 0.5  # points: threads do not always meet
# What begins like this is a statement, whether or not the compiler has ever seen it.
STATEMENT = re.compile(r"\s*(?:(?:co_)?return|co_await|co_yield|throw|if \(|for \(|while \(|switch \()\b")


class Gap(collections.namedtuple("Gap", "file kind text line column")):
    @property
    def key(self):
        return self.file, self.kind, self.text

    def __str__(self):
        return f"{self.file}:{self.line}:{self.column}: {self.kind:5} | {self.text}"


def measured():
    """{header: llvm-cov's accounts of it, one for each program, as JSON}."""
    profiles = sorted((BUILD / "profile").glob("*.profraw"))
    programs = [path for path in sorted(BUILD.glob("tests/**/*"))
                if path.is_file() and os.access(path, os.X_OK) and path.suffix == ""]
    if not profiles or not programs:
        sys.exit(f"nothing has been measured in {BUILD}: run `tests/run.sh clang19` before\n"
                 "0 passed, 1 failed")
    data = BUILD / "profile" / "all.profdata"
    subprocess.run(["llvm-profdata-19", "merge", "-sparse", *profiles, "-o", data], check=True)
    def export(program):
        # One by one: of two programs in one call, one that does not use a function hides that the other does.
        done = subprocess.run(["llvm-cov-19", "export", "-skip-functions", "-skip-expansions",
                               "-instr-profile", data, program, INCLUDE],
                              check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(done.stdout)["data"][0]["files"]

    accounts = collections.defaultdict(list)
    for account in (account for one in in_parallel(export, programs) for account in one):
        accounts[os.path.relpath(account["filename"], INCLUDE)].append(account)
    return accounts


def line_counts(segments, source):
    """{line: how often its most frequent part ran} of the lines that have code, and the lines whose code begins with
    something that is decided when it is compiled."""
    counts, constant = {}, set()
    by_line = collections.defaultdict(list)
    for segment in segments:
        by_line[segment[0]].append(segment)
    before = None  # the segment that reaches into this line
    for number in range(1, max(by_line, default=0) + 1):
        here = by_line[number]
        # A segment is line, column, count, has a count, begins a region, is a gap between statements. One that goes on
        # with a region counts where the line begins with it, not where it is what follows a statement.
        text = source[number - 1] if number <= len(source) else ""
        begin = len(text) - len(text.lstrip()) + 1
        counted = [s for s in here if s[3] and not s[5] and (s[4] or s[1] <= begin)]
        skipped = bool(here) and here[0][4] and not here[0][3]
        if skipped:
            constant.add(number)
        elif counted or (before and before[3]):
            counts[number] = max([s[2] for s in counted] + ([before[2]] if before else []))
        if here:
            before = here[-1]
    return counts, constant


def without_comments(line):
    return re.sub(r"//.*", "", line)


class Header:
    def __init__(self, name, accounts):
        self.name = name
        text = (INCLUDE / name).read_text()
        # A text over several lines is data.
        text = re.sub(r'R"\(.*?\)"', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)
        source = text.splitlines()
        counts, constant = collections.Counter(), set()
        for account in accounts:
            here, skipped = line_counts(account["segments"], source)
            constant |= skipped
            for number, count in here.items():
                counts[number] = max(counts[number], count)
        for number, line in enumerate(source, 1):
            if STATEMENT.match(without_comments(line)):
                counts.setdefault(number, 0)
            if number in constant and counts[number] == 0:
                del counts[number]
        # A line with nothing but a brace or `else`, or for the preprocessor, has no life of its own.
        self.lines = {number: count for number, count in counts.items() if re.search(
            r"\w", re.sub(r"^\s*#.*|else", "", without_comments(source[number - 1])))}
        outcomes = collections.Counter()
        for account in accounts:
            for line, column, _, _, true, false, *_ in account["branches"]:
                if "switch (" in source[line - 1]:
                    continue  # that no case fits: the compilers see to it that all are there
                outcomes[line, column, "true"] += true
                outcomes[line, column, "false"] += false
        self.outcomes = {}
        for (line, column, kind), count in outcomes.items():
            other = outcomes[line, column, "false" if kind == "true" else "true"]
            if count + other > 0:  # else constant, or its line is told of
                self.outcomes[line, column, kind] = count
        text = [without_comments(line).strip() for line in source]
        self.texts = set(text)
        self.gaps = [Gap(name, "line", text[n - 1], n, 1)
                     for n, c in sorted(self.lines.items()) if not c]
        self.gaps += [Gap(name, kind, text[line - 1], line, column)
                      for (line, column, kind), count in sorted(self.outcomes.items()) if not count]


def reasons():
    """{(file, kind, text): (reason, may be reached)}, and complaints."""
    known, complaints = {}, []
    for paragraph in re.split(r"\n\s*\n", REASONS.read_text()):
        lines = [line for line in paragraph.splitlines() if not line.startswith("#")]
        words = " ".join(line for line in lines if not line.startswith((" ", "?")))
        entries = [line for line in lines if line.startswith((" ", "?"))]
        if entries and not words:
            complaints.append(f"no reason for: {entries[0].strip()}")
        if words and not entries:
            complaints.append(f"a reason of nothing: {words}")
        for entry in entries:
            parts = [part.strip() for part in entry[1:].split(" | ", 2)]
            if len(parts) != 3 or parts[1] not in ("line", "true", "false"):
                complaints.append(f"not `file | line, true or false | text`: {entry}")
                continue
            known[tuple(parts)] = words, entry.startswith("?")
    return known, complaints


def share(counts):
    reached = sum(1 for count in counts if count)
    return 100 * reached / len(counts) if counts else 100, reached, len(counts)


def docs(all_lines, all_outcomes, write):
    """Complaints about the figures in the page."""
    text = PAGE.read_text()
    marked = MARKED.search(text)
    if not marked:
        return [f"{PAGE.name} has no marks <!-- coverage --> and <!-- /coverage -->"]
    figures = [share(all_lines), share(all_outcomes)]
    table = "| of `include/` | reached | of | |\n|---|---|---|---|\n" + "".join(
        f"| {what} | {reached:,} | {count:,} | {percent:.1f} % |\n" for what, (percent, reached, count)
        in zip(("lines", "outcomes of conditions"), figures))
    if write:
        PAGE.write_text(MARKED.sub(lambda m: m[1] + table + m[2], text))
        return []
    written = [float(number) for number in re.findall(r"([\d.]+) %", marked[0])]
    if len(written) != 2 or any(abs(was - now[0]) > TOLERANCE for was, now in zip(written, figures)):
        return [f"the figures are {written}, should be {[round(now[0], 1) for now in figures]}: "
                "run tests/coverage/report.py --write-docs"]
    return []


# What only a race of threads or sockets reaches may be missed by one run before it has a reason: a line, and the outcomes
# on it. More is a change without tests.
BY_CHANCE = 15


def main():
    accounts = measured()
    known, complaints = reasons()
    everything = [Header(name, accounts.get(name, [])) for name in usable()]
    excused, used, missed = [], set(), []
    print(f"{'':48}{'lines':>14}{'outcomes':>18}")
    for header in everything:
        parts = [share(header.lines.values()), share(header.outcomes.values())]
        print(f"{header.name:48}" + "".join(
            f"{percent:8.1f} % {f'{reached}/{count}':>9}" for percent, reached, count in parts))
    for gap in (gap for header in everything for gap in header.gaps):
        if gap.key in known:
            used.add(gap.key)
            excused.append(gap)
        else:
            missed.append(f"not reached: {gap}")
    complaints += [f"reached, and yet excused: {' | '.join(key)}"
                   for key, (_, perhaps) in known.items() if key not in used and not perhaps
                   and (key[0] in accounts or not (INCLUDE / key[0]).exists())]
    all_lines = [count for header in everything for count in header.lines.values()]
    all_outcomes = [count for header in everything for count in header.outcomes.values()]
    for what, counts in (("lines", all_lines), ("outcomes of conditions", all_outcomes)):
        percent, reached, count = share(counts)
        print(f"{what}: {percent:.2f} %, {reached} of {count}")
    print(f"excused: {len(excused)}, by {len({known[gap.key][0] for gap in excused})} reasons")
    if "--all" in sys.argv[1:]:
        for gap in excused:
            print(f"    {gap}\n        {known[gap.key][0]}")
    texts = {header.name: header.texts for header in everything}
    complaints += [f"no such line: {' | '.join(key)}"
                   for key in known if key[0] in texts and key[2] not in texts[key[0]]]
    complaints += docs(all_lines, all_outcomes, "--write-docs" in sys.argv[1:])
    if len(missed) > BY_CHANCE:
        complaints += missed
    else:
        for m in missed:
            print(m)
    for complaint in complaints:
        print("FAILED", complaint)
    print(f"{len(everything)} passed, {len(complaints)} failed")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
