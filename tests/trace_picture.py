#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Reads the trace of examples/trace.cpp strictly, and keeps the picture of it in the docs.

usage: trace_picture.py PROGRAM            its trace is well formed, its times are those that the program slept, and
                                           docs/plots/trace.svg shows it
       trace_picture.py PROGRAM --write    draws that anew
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/plots/trace.svg"
sys.path.insert(0, str(ROOT / "tests/benchmarks/speed"))
sys.dont_write_bytecode = True
from plots import COLOURS, WIDTH, page, text  # noqa: E402

FIELDS = {"M": {"name", "args"}, "X": {"ts", "dur", "cat", "name", "args"},
          "C": {"ts", "name", "args"}, "b": {"ts", "cat", "id", "name", "args"},
          "e": {"ts", "cat", "id", "name", "args"}}
# What the program does, in milliseconds: (track, from, to) of its exclusive holds, and of its waits.
HOLDS = [("'ann'", 0, 40), ("'ann'", 40, 60), ("'bob'", 45, 60), ("the whole mux", 85, 100),
         ("'cy'", 115, 125)]
WAITS = [("'ann'", 10, 40, "granted"), ("'ann'", 15, 35, "given up"), ("'bob'", 25, 45, "granted"),
         ("2 keys", 50, 60, "granted"), ("the whole mux", 70, 85, "granted"),
         ("'ann'", 90, 100, "granted"), ("'cy'", 95, 115, "granted")]
SETS = [("2 keys", 60, 80)]
SHARED = {"'bob'": [(5, 1), (15, 2), (35, 1), (45, 0)], "'cy'": [(20, 1), (85, 0)],
          "the whole mux": [(100, 1), (115, 0)], "'ann'": [(100, 1), (120, 0)]}


def refuse(name):
    raise ValueError(f"{name} is no JSON")


def once(pairs):
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError(f"a key stands twice in {pairs}")
    return dict(pairs)


def read(document):
    """(holds, waits, sets, shared), or an error when it is not what the viewers take."""
    events = json.loads(document, parse_constant=refuse, object_pairs_hook=once)["traceEvents"]
    tracks, open_spans = {}, {}
    holds, waits, sets, shared = [], [], [], {}
    for event in events:
        assert set(event) == FIELDS[event["ph"]] | {"ph", "pid", "tid"}, event
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0, event
        begin = event.get("ts", 0) / 1000
        if event["ph"] == "M":
            tracks[event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            holds.append((tracks[event["tid"]], begin, begin + event["dur"] / 1000))
        elif event["ph"] == "C":
            assert event["name"] == tracks[event["tid"]] + ": shared by", event
            shared.setdefault(tracks[event["tid"]], []).append((begin, event["args"]["holders"]))
        elif event["ph"] == "b":
            assert event["id"] not in open_spans and event["tid"] in tracks, event
            open_spans[event["id"]] = event
        else:
            start = open_spans.pop(event["id"])
            assert start["ts"] <= event["ts"] and start["name"] == event["name"], event
            if event["cat"] == "wait":
                waits.append((event["name"].removesuffix(": waiting"), start["ts"] / 1000, begin,
                              event["args"]["end"]))
            else:
                sets.append((event["name"], start["ts"] / 1000, begin))
    assert not open_spans, open_spans
    return holds, waits, sets, shared


def lanes(spans):
    """Each span with the lowest lane in which it meets no other."""
    free = []
    for span in sorted(spans, key=lambda s: s[1]):
        lane = next((n for n, end in enumerate(free) if end <= span[1]), len(free))
        free[lane:lane + 1] = [span[2]]
        yield lane, span


def draw(holds, waits, sets, shared):
    left, right, thick, thin = 130, WIDTH - 20, 18, 9
    blue, orange, light, red = COLOURS[0], COLOURS[1], "#a9c8ea", COLOURS[4]
    last = max(end for _, _, end, *_ in holds + waits + sets)
    parts, y = [], 66

    def at(ms):
        return left + ms * (right - left) / last

    def bar(begin, end, top, height, colour):
        return f'<rect x="{at(begin):.1f}" y="{top:.1f}" width="{at(end) - at(begin) - 1:.1f}" ' \
               f'height="{height:.1f}" fill="{colour}"/>'

    names = sorted({h[0] for h in holds + sets} | set(shared), key=lambda n: (" " in n, n))
    for name in names:
        top = y
        parts.append(text(left - 8, y + 14, name, "end"))
        for _, begin, end in [h for h in holds + sets if h[0] == name]:
            parts.append(bar(begin, end, y, thick, blue))
        steps = shared.get(name, [])
        for (begin, count), (end, _) in zip(steps, steps[1:]):
            height = thick * count / max(n for _, n in steps)
            if count:
                parts += [bar(begin, end, y + thick - height, height, light),
                          text(at(begin) + 4, y + thick - 4, str(count), size=11)]
        y += thick + 2
        deepest = -1
        for lane, (_, begin, end, how) in lanes([w for w in waits if w[0] == name]):
            colour = orange if how == "granted" else red
            parts.append(bar(begin, end, y + lane * thin, thin - 2, colour))
            deepest = max(deepest, lane)
        y += (deepest + 1) * thin + 10
        parts.insert(0, f'<rect x="{left}" y="{top}" width="{right - left}" '
                        f'height="{y - top - 6}" fill="#f4f4f4"/>')
    for ms in range(0, int(last) + 1, 20):
        parts += [f'<line x1="{at(ms):.1f}" x2="{at(ms):.1f}" y1="60" y2="{y}" stroke="#ddd"/>',
                  text(at(ms), y + 14, f"{ms} ms", "middle", 11)]
    legend = [("held alone", blue), ("shared, by how many", light), ("waits", orange),
              ("gives up", red)]
    x = WIDTH - 430
    for label, colour in legend:
        parts += [f'<rect x="{x}" y="35" width="11" height="11" fill="{colour}"/>',
                  text(x + 16, 45, label, size=12)]
        x += 40 + 6.5 * len(label)
    return page(y + 24, "What a mux records: who holds, who waits", "examples/trace.cpp", parts)


def main():
    document = subprocess.run([sys.argv[1]], check=True, stdout=subprocess.PIPE, text=True).stdout
    holds, waits, sets, shared = read(document)
    expected = sorted(HOLDS), sorted(WAITS), SETS, SHARED
    found = sorted(holds), sorted(waits), sets, shared
    if found != expected:
        return f"the trace says\n{found}\ninstead of\n{expected}"
    picture = draw(*found)
    if sys.argv[2:] == ["--write"]:
        PICTURE.write_text(picture)
    elif not PICTURE.exists() or PICTURE.read_text() != picture:
        return f"{PICTURE.relative_to(ROOT)} shows another trace; draw it with --write"
    return 0


if __name__ == "__main__":
    sys.exit(main())
