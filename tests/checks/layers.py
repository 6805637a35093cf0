#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Headers include only what stands above them in the list of CMakeLists.txt.

Without this check the reading order rots, and the two products (the keyed mutex of one process
and the lease over a store) grow into each other.
"""
import re
import sys

from common import INCLUDE, ROOT, headers

DEEPEST = 15  # web_beast.hpp down to clock.hpp: a chain of small headers, one duty each
NOT_IN_UMBRELLA = {"amux/format.hpp", "amux/redis_backend.hpp", "amux/asio_scheduler.hpp",
                   "amux/asio.hpp", "amux/web.hpp", "amux/connection_watch.hpp",
                   "amux/web_httplib.hpp", "amux/web_beast.hpp"}


def in_tests(name):
    """For users' tests: heavy where that is convenient."""
    return name.startswith("amux/testing/")


def product(name):
    if re.search(r"distributed_lock", name):
        return "distributed_lock"
    if re.search(r"backend|lease|acquired_lock", name):
        return "lease"
    if re.search(r"asyncmux", name):
        return "asyncmux"
    return ""


MUST_NOT_REACH = {
    "asyncmux": {"lease", "distributed_lock"},
    "lease": {"asyncmux"},
    "distributed_lock": set(),  # its local queue may be an asyncmux
    "": set(),
}


def check():
    text = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text())
    order = re.findall(r"include/(amux/[\w/]+\.hpp)", text)
    place = {name: number for number, name in enumerate(order)}
    complaints = [f"{name}: listed twice in CMakeLists.txt"
                  for name in sorted(set(order)) if order.count(name) > 1]
    complaints += [f"{name}: not in the header list of CMakeLists.txt"
                   for name in headers() if name not in place]
    complaints += [f"{name}: in CMakeLists.txt, but there is no such file"
                   for name in order if not (INCLUDE / name).exists()]

    direct = {}
    for name in headers():
        source = (INCLUDE / name).read_text()
        direct[name] = re.findall(r"^\s*#\s*include\s*<(amux/[^>]+)>", source, re.M)
        for quoted in re.findall(r'^\s*#\s*include\s*(".*")', source, re.M):
            complaints.append(f"{name}: includes {quoted}; write <amux/...>")
        for other in direct[name]:
            if other not in headers():
                complaints.append(f"{name}: includes {other}, which does not exist")
            elif name in place and place.get(other, -1) >= place[name]:
                complaints.append(f"{name}: includes {other}, which stands below it")
        amux_part = [line for line in source.splitlines() if re.match(r"\s*#\s*include", line)]
        kinds = ["<amux/" in line for line in amux_part]
        if kinds != sorted(kinds, reverse=True):
            complaints.append(f"{name}: std headers come after those of amux")
    if complaints:
        return complaints

    reached, depth = {}, {}
    for name in order:  # every include stands above, so it is known already
        reached[name] = set(direct[name]).union(*(reached[other] for other in direct[name]))
        depth[name] = 1 + max((depth[other] for other in direct[name]), default=0)
        for other in sorted(reached[name]):
            if product(other) in MUST_NOT_REACH[product(name)]:
                complaints.append(f"{name}: reaches {other}, the other product")
        if depth[name] > DEEPEST and name != "amux/amux.hpp" and not in_tests(name):
            complaints.append(f"{name}: include depth {depth[name]}, at most {DEEPEST}")
    for other in sorted(reached.get("amux/amux.hpp", set())):
        if other in NOT_IN_UMBRELLA or in_tests(other):
            complaints.append(f"amux/amux.hpp: reaches {other}, which is not for every user")
    return complaints


if __name__ == "__main__":
    found = check()
    print("\n".join(found) or "layers: fine")
    sys.exit(bool(found))
