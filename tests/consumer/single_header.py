#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Makes one header of many, for whoever wants to drop a single file into a project.

usage: single_header.py [HEADER...] > amux.hpp

HEADER is as it would be included; without any, amux/amux.hpp: everything that needs the standard
library alone. `single_header.py amux/amux.hpp amux/redis_backend.hpp` adds a part that needs more.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS = re.compile(r"#include <(amux/[^>]+)>\n?")
TWICE = re.compile(r"// SPDX-License-Identifier: .*\n|#pragma once\n")


def inline(header, seen):
    """The text of a header, with those of ours that it includes, each once, where it is first needed."""
    if header in seen:
        return ""
    seen.add(header)
    text = TWICE.sub("", (ROOT / "include" / header).read_text())
    return f"// {header}\n" + OURS.sub(lambda found: inline(found[1], seen), text)


def main():
    headers = sys.argv[1:] or ["amux/amux.hpp"]
    if missing := [h for h in headers if not (ROOT / "include" / h).is_file()]:
        sys.exit(f"single_header.py: there is no include/{missing[0]}")
    licence = "".join(f"// {line}".rstrip() + "\n" for line in (ROOT / "LICENSE").read_text().splitlines())
    seen = set()
    print(f"// SPDX-License-Identifier: BSL-1.0\n#pragma once\n\n{licence}\n"
          + "".join(inline(h, seen) for h in headers), end="")


if __name__ == "__main__":
    main()
