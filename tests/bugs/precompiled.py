# SPDX-License-Identifier: BSL-1.0
"""Precompiled headers for a source with one mistaken header: all that does not see the mistake.

The standard library and ours take a compiler longer than the case that is tested. Our headers are put in an order in which
each stands behind all that it includes. What stands before a mistaken one cannot see it, so that a beginning of this order
can be compiled once for many mistakes.
"""
import collections
import functools
import re
import subprocess

from common import INCLUDE, ROOT

TESTS = ROOT / "tests"
# Those from outside that take long.
LONG = re.compile(r"\w+|(?:catch2|boost)/.*|httplib\.h")


@functools.cache
def included_by(path):
    """([paths of ours], [names from outside]), whatever the conditions around them."""
    ours, outside = [], []
    for quote, name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', path.read_text(), re.M):
        folders = ([path.parent] if quote == '"' else []) + [INCLUDE, TESTS]
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if found:
            ours.append(found[0].resolve())
        else:
            outside.append(name)
    return ours, outside


@functools.cache
def seen_by(path):
    """Our files that a compiler may read for `path`, with itself."""
    return frozenset([path]).union(*map(seen_by, included_by(path)[0]))


def name_of(header):
    """As it is included, or None when it lies elsewhere."""
    return next((header.relative_to(folder) for folder in (INCLUDE, TESTS) if folder in header.parents), None)


@functools.cache
def long_ones(path):
    return sorted({name for seen in seen_by(path) for name in included_by(seen)[1] if LONG.fullmatch(name)})


def kind_of(source, flags):
    """What has the same kind can have the same precompiled headers.

    Where a class has its virtual functions in a header, each object compiles them, used or not: a source is
    spared those of the leases, of Redis and of Asio when it does not include them."""
    compiled = tuple(flag for flag in flags if not flag.startswith(("-l", "-Wl")))
    names = {name for seen in seen_by(ROOT / source) for name in included_by(seen)[1]}
    leases = INCLUDE / "amux/detail/lease.hpp" in seen_by(ROOT / source)
    return compiled, leases, "hiredis/hiredis.h" in names, any(name.startswith("boost/") for name in names)


def ordered(headers, mistakes):
    """Each behind all that it includes; of what may come next, that with the fewest mistakes."""
    order, left = [], set(headers)
    while left:
        ready = [header for header in left if not left & (seen_by(header) - {header})]
        order.append(min(ready, key=lambda header: (mistakes[header], str(header))))
        left.remove(order[-1])
    return order


class PrecompiledHeaders:
    """For one kind of source; `uses` are pairs of a source and the header that is mistaken for it."""

    def __init__(self, folder, compiler, kind, uses):
        self.made = []  # (our headers in it, options)
        mistakes = collections.Counter(mistaken for source, mistaken in uses if mistaken in seen_by(source))
        if sum(mistakes.values()) < 5:
            return
        folder.mkdir()
        self.folder, self.compile = folder, [*compiler, *kind[0], "-fpch-instantiate-templates"]
        sources = {source for source, _ in uses}
        outside = sorted(set().union(*map(long_ones, sources)))
        self.outside = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in outside)
        self.make([])
        headers = {path for path in set().union(*map(seen_by, sources)) - sources if name_of(path)}
        order, before = ordered(headers, mistakes), 0
        for place, header in enumerate(order):
            # It takes as long as a hundred headers take in one source.
            if mistakes[header] * (place - before) >= 100:
                self.make(order[:place])
                before = place
        self.make(order)

    def make(self, headers):
        path = self.folder / f"{len(self.made)}.hpp"
        path.write_text(self.outside + "".join(f'#include "{name_of(header)}"\n' for header in headers))
        made = path.with_suffix(".pch")
        done = subprocess.run([*self.compile, "-I", INCLUDE, "-I", TESTS, "-x", "c++-header", path, "-o", made],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
        if done.returncode == 0:
            self.made.append((set(headers), ["-include-pch", made]))
        else:  # Then the sources say what is wrong, or take longer.
            print(f"not precompiled:\n{done.stdout[:2000]}", flush=True)

    def options(self, mistaken=None):
        """For a compiler that is not to see `mistaken` in what is precompiled."""
        return next((options for held, options in reversed(self.made) if mistaken not in held), [])
