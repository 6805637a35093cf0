#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Every C++ block of README.md and docs/*.md is a region of a compiled file; so is any other block
with a region line above it, such as a command that a test gives to a server.

usage: snippets.py [--fix]     --fix rewrites the blocks from the files

In the page, a comment line stands above the block:

    <!-- region: examples/one_key.cpp#lock -->

and in the source the region stands between two comment lines, `// [lock]` and `// [/lock]`.
Regions may nest. Without `#name` the block is the whole file, without its SPDX line.
"""
import re
import sys
import textwrap

from common import ROOT, files

BLOCK = re.compile(
    r"^(?P<head>(?:<!-- region: (?P<file>[^#\s]+)(?:#(?P<name>\S+))? -->[ \t]*\n\s*?"
    r"```\w*|```(?:cpp|c\+\+))[^\n]*\n)(?P<body>.*?)^```[ \t]*$", re.M | re.S)
MARKER = re.compile(r"^\s*// \[/?[\w-]+\]\s*$")


class Trouble(Exception):
    pass


def region(file, name):
    path = ROOT / file
    if not path.is_file():
        raise Trouble(f"there is no {file}")
    lines = path.read_text().splitlines()
    if name:
        begin = [n for n, line in enumerate(lines) if line.strip() == f"// [{name}]"]
        end = [n for n, line in enumerate(lines) if line.strip() == f"// [/{name}]"]
        if len(begin) != 1 or len(end) != 1 or end[0] < begin[0]:
            raise Trouble(f"{file} needs one '// [{name}]' and, below, one '// [/{name}]'")
        lines = lines[begin[0] + 1:end[0]]
    else:
        lines = [line for line in lines if "SPDX-License-Identifier" not in line]
    kept = "\n".join(line for line in lines if not MARKER.match(line))
    return textwrap.dedent(kept).strip("\n") + "\n"


def check(fix=False):
    complaints = []
    for page in files("README.md", "docs/**/*.md"):
        text = (ROOT / page).read_text()

        def replace(match):
            where = f"{page}:{text.count(chr(10), 0, match.start('body'))}"
            if not match["file"]:
                complaints.append(f"{where}: a C++ block without a region line above it")
                return match[0]
            try:
                wanted = region(match["file"], match["name"])
            except Trouble as trouble:
                complaints.append(f"{where}: {trouble}")
                return match[0]
            if match["body"] == wanted:
                return match[0]
            if not fix:
                complaints.append(f"{where}: differs from {match['file']}#{match['name']}; "
                                  "run tests/checks/snippets.py --fix")
            return match["head"] + wanted + "```"

        fixed = BLOCK.sub(replace, text)
        blocks = list(BLOCK.finditer(text))
        if len(re.findall(r"^\s*(?:```|~~~)\s*(?:cpp|c\+\+)", text, re.M)) != sum(
                bool(re.search(r"```(?:cpp|c\+\+)", block["head"])) for block in blocks):
            complaints.append(f"{page}: an indented or unfinished C++ block")
        if text.count("<!-- region:") != sum(bool(block["file"]) for block in blocks):
            complaints.append(f"{page}: a region line without a block below it")
        if fix and fixed != text:
            (ROOT / page).write_text(fixed)
            print(f"rewritten: {page}")
    return complaints


if __name__ == "__main__":
    found = check(fix="--fix" in sys.argv[1:])
    print("\n".join(found) or "snippets: fine")
    sys.exit(bool(found))
