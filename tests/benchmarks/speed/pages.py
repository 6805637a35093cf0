# SPDX-License-Identifier: BSL-1.0
"""The tables and plots of docs/performance.md, from what the programs have printed.

A table stands between two comment lines of the page, `<!-- table: NAME -->` and `<!-- /table -->`; a
figure inside of a sentence, also of the README and of docs/asio.md, between `<!-- = ROW: WHO -->`,
or `WHO / BESIDE` for a ratio, and `<!-- . -->`.
"""
import collections
import json
import pathlib
import re
import sys

import plots

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
Goal = collections.namedtuple("Goal", "row who against at_most ratio met")

MUXES = ["asyncmux", "asyncmux, 16 shards", "unsynchronized_asyncmux"]
UNKEYED = ["coroutine mutex, unkeyed", "coroutine mutex, unsynchronized"]
FOREIGN = ["libcoro", "cppcoro", "async_simple"]
TBB = "tbb::concurrent_hash_map"
KEYS = [f"{kind}, {n}" for kind in ("int", "string") for n in ("1", "1k", "100k", "1M")]
WAITERS = ["1k", "100k", "1M"]

# Of each table: its rows, and its columns; a row is named as in the program.
GRIDS = {
    "exclusive": ([f"exclusive, {k}" for k in KEYS],
                  [*MUXES, "floor", UNKEYED[0], "map of std::mutex", "map of coroutine mutexes",
                   TBB]),
    "shared": ([f"shared, {k}" for k in KEYS],
               [*MUXES, "map of std::shared_mutex", "map of coroutine shared mutexes", TBB]),
    "queueing": ([f"queueing, {n}" for n in WAITERS],
                 [*MUXES, "floor", *UNKEYED, "map of coroutine mutexes", *FOREIGN]),
    "hand-over": ([f"hand-over, {n}" for n in WAITERS],
                  [*MUXES, "floor", *UNKEYED, "map of coroutine mutexes", *FOREIGN]),
    "two threads": ([f"two threads, {keys}, {d}" for keys in ("disjoint keys", "same key")
                     for d in ("near", "far")],
                    [MUXES[0], "asyncmux, try_lock until it is free", "floor, 16 shards",
                     "floor, 64 shards", "a line there and back", "map of std::mutex", TBB]),
    "whole mux": ([*[f"whole mux, {n} keys tracked" for n in ("0", "1k", "100k")],
                   *[f"whole mux shared, {n} keys held" for n in ("1k", "100k")]],
                  [*MUXES, UNKEYED[0]]),
    "lock_all": ([f"lock_all of {n}" for n in (2, 8, 64)],
                 [*MUXES, "floor, for each key", "map of std::mutex"]),
    "stops": (["stopped in random order, 1k", "stopped in random order, 100k"],
              ["asyncmux, try_lock_until", "asyncmux, lock, which throws",
               "unsynchronized_asyncmux, try_lock_until", "floor, on a loop",
               "floor, inside the stop"]),
    "time-outs": (["timed out, 1k", "timed out, 100k"],
                  ["asyncmux, try_lock_for", "a sleep alone"]),
    "holding": (["hold 100k keys, int", "hold 100k keys, string"],
                [*MUXES, "asyncmux, new", "map of std::mutex"]),
    "asio": (["asio, uncontended", "asio, handed to the next of eight",
              "asio, a thousand that hold over a turn of the loop"],
             ["asyncmux", "a channel for one message", "a concurrent_channel", "without a lock",
              "asyncmux, task on event_loop", "asyncmux, task on asio_scheduler"]),
}
# Other tables are one row of the program, down the page.

def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def values_of(lines):
    """{row: {contender: median}}."""
    values = {}
    for line in lines:
        if "median" in line:
            values.setdefault(line["row"], {})[line["contender"]] = line["median"]
    return values


def goals(lines):
    values = values_of(lines)
    for line in lines:
        if "at_most" not in line:
            continue
        row = values.get(line["row"], {})
        if line["contender"] in row and line["against"] in row:
            ratio = row[line["contender"]] / row[line["against"]]
            yield Goal(line["row"], line["contender"], line["against"], line["at_most"], ratio,
                       round(ratio, 2) <= round(line["at_most"], 2))


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head),
                      *("| " + " | ".join(row) + " |" for row in rows)])


def grid(values, name):
    rows, columns = GRIDS[name]
    present = [c for c in columns if any(c in values.get(row, {}) for row in rows)]
    return table(["ns", *(c.replace("_asyncmux", "_&#8203;asyncmux") for c in present)],
                 [[row, *(number(values[row][c]) if c in values[row] else "" for c in present)]
                  for row in rows if row in values])


def as_list(lines, name):
    found = [line for line in lines if line["row"] == name and "median" in line]
    return table([name, found[0]["unit"]],
                 [[line["contender"], number(line["median"])] for line in found])


def all_goals(results):
    """A line for each goal; rows that differ in the number of keys alone share one, with the worst
    of their ratios. What misses its goal is bold."""
    worst = {}
    for compiler, lines in results.items():
        for g in goals(lines):
            row = re.sub(r"^(exclusive, \w+|shared, \w+), \w+$", r"\1", g.row)
            row = re.sub(r"^(whole mux\D*), \w+ keys", r"\1, any number of keys", row)
            cells = worst.setdefault((row, g.who, g.against, g.at_most), {})
            if compiler not in cells or cells[compiler].ratio < g.ratio:
                cells[compiler] = g

    def cell(goal):
        if goal is None:
            return ""
        return f"{goal.ratio:.2f}" if goal.met else f"**{goal.ratio:.2f}**"
    return table(["work", "who", "beside", "at most", *results],
                 [[row, who, against, f"{at_most:.2f}", *(cell(cells.get(c)) for c in results)]
                  for (row, who, against, at_most), cells in worst.items()])


def instructions():
    sys.path.insert(0, str(ROOT / "tests/checks"))
    from instructions import FIGURES
    return table(["path", "instructions"], [[path, number(n)] for path, n in FIGURES.items()])


def write(files):
    results = {}
    for compiler, path in files.items():
        results[compiler] = read(path)
        if not results[compiler]:
            sys.exit(f"there is no {path}: run speed.py --compiler {compiler}")
    lines = next(iter(results.values()))
    values = values_of(lines)

    def replaced(match):
        name = match[2]
        text = (all_goals(results) if name == "goals" else
                instructions() if name == "instructions" else
                grid(values, name) if name in GRIDS else as_list(lines, name))
        return f"{match[1]}\n{text}\n{match[3]}"

    def figure(match):
        row, (who, _, beside) = values[match[2]], match[3].partition(" / ")
        return match[1] + number(row[who] / row[beside] if beside else row[who]) + match[4]
    for page in (DOCS / "performance.md", DOCS / "asio.md", ROOT / "README.md"):
        text = re.sub(r"(<!-- table: (.+?) -->)\n.*?(<!-- /table -->)", replaced,
                      page.read_text(), flags=re.S)
        page.write_text(re.sub(r"(<!-- = (.+?): (.+?) -->)[^<]*(<!-- \. -->)", figure, text))

    folder = DOCS / "plots"
    folder.mkdir(exist_ok=True)
    (folder / "uncontended.svg").write_text(plots.bars(
        "A lock and its release, nobody else there", "ns, of a thousand keys",
        {kind: values[f"exclusive, {kind}, 1k"] for kind in ("int", "string")},
        GRIDS["exclusive"][1]))
    (folder / "hand_over.svg").write_text(plots.lines(
        "Handing a lock over", "ns for each waiter", "waiters", WAITERS,
        {who: [values[f"hand-over, {n}"].get(who) for n in WAITERS]
         for who in [*MUXES, "floor", *UNKEYED, "map of coroutine mutexes"]}))
    (folder / "keys.svg").write_text(plots.lines(
        "The number of keys does not matter", "ns", "keys, 64-bit ints",
        ["1", "1k", "100k", "1M"],
        {who: [values[f"exclusive, int, {n}"].get(who) for n in ("1", "1k", "100k", "1M")]
         for who in ["asyncmux", "floor", UNKEYED[0], "map of std::mutex", TBB]}))
