#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""What readers paste: the whole programs of the pages, built and run as is said below each of them.

usage: pasted.py --list         the pages that have one; of pages with the same one, the first
       pasted.py PAGE           builds and runs that of a page, in a folder of its own

A whole program is a C++ block that is a whole file. The console block that follows on it tells how
it is built and run: what root installs first (`#`), which is left to the reader here, commands
(`$`), and what they print.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r"^<!-- region: (examples/\S+\.cpp) -->\n```cpp\n(.*?)^```$(.*?)(?=^<!-- region|\Z)",
                     re.M | re.S)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


class Program:
    def __init__(self, page, file, text, console):
        self.page = page
        self.name = pathlib.Path(file).name
        self.text = text
        lines = console.splitlines(keepends=True)
        self.packages = [line[2:] for line in lines if line.startswith("# ")]
        self.commands = [line[2:] for line in lines if line.startswith("$ ")]
        self.output = "".join(line for line in lines if line[:2] not in ("# ", "$ "))

    def run(self):
        """What is wrong with it."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / self.name).write_text(self.text)
            done = subprocess.run(["bash", "-e", "-c", "".join(self.commands)], cwd=folder, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode == 0 and done.stdout == self.output:
            return None
        return f"{self.page}: {self.name} gives {done.returncode}, and prints\n{done.stdout}" \
               f"where the page says\n{self.output}"


def programs():
    for page in sorted(ROOT.glob("docs/**/*.md")):
        for file, text, rest in PROGRAM.findall(page.read_text()):
            console = CONSOLE.search(rest)
            if not console:
                sys.exit(f"{page}: no console block follows on {file}")
            yield Program(str(page.relative_to(ROOT)), file, text, console[1])


def main():
    if sys.argv[1:] == ["--list"]:
        seen = {}
        for program in programs():
            seen.setdefault((program.text, *program.commands, program.output), program.page)
        print("\n".join(seen.values()))
        return 0
    found = [program.run() for program in programs() if program.page == sys.argv[1]]
    print("\n".join(filter(None, found)))
    return not found or any(found)


if __name__ == "__main__":
    sys.exit(main())
