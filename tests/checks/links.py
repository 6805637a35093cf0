#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Links in the docs lead somewhere, and every promise to its test.

A link to a test names the case in its title, which must be a TEST_CASE of that file. Where it is a
reference, `[fairness-1]`, its target stands at the end of the section:

    [fairness-1]: ../tests/faults/fairness.cpp "asyncmux: five waiters are served in order"

In docs/guarantees.md every row of a table, every item of a list and every section has one. A file
without cases, such as a program of its own, is linked without a title.
"""
import functools
import re
import sys

from common import ROOT, files

PROMISES = "docs/guarantees.md"
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"((?:\\.|[^\"\\])*)\")?\)")
REFERENCE = re.compile(r'^\[([\w-]+)\]: (\S+(?: "(?:\\.|[^"\\])*")?)$', re.M)
LITERAL = r'"((?:\\.|[^"\\])*)"'


@functools.cache
def cases(path):
    """The names of the test cases in a file."""
    found = re.findall(rf"TEST_CASE(?:_METHOD)?\(\s*((?:{LITERAL}\s*)+)", path.read_text())
    return {"".join(re.findall(LITERAL, whole)).replace('\\"', '"') for whole, _ in found}


@functools.cache
def anchors(path):
    """What the headings of a page can be linked by."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    names = re.findall(r"^#+\s+(.+?)\s*$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


def without_code(text):
    """Code blocks blanked, lines kept."""
    return re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", "", m[0]), text, flags=re.M | re.S)


def with_references(page, text, complaints):
    """References replaced by the links that they stand for, lines kept."""
    targets = {}
    for label, target in REFERENCE.findall(text):
        if label in targets:
            complaints.append(f"{page}: [{label}] has two targets")
        targets[label] = target
    text = REFERENCE.sub("", text)
    for label, target in targets.items():
        if f"[{label}]" not in text:
            complaints.append(f"{page}: [{label}] is not referred to")
        text = text.replace(f"[{label}]", f"[{label}]({target})")
    for label in re.findall(r"\[([\w-]+-\d+)\](?!\()", text):
        complaints.append(f"{page}: [{label}] has no target")
    return text


def broken(page, target, title):
    """What is wrong with a link."""
    name, _, anchor = target.partition("#")
    path = (ROOT / page).parent / name if name else ROOT / page
    if not path.exists():
        return f"there is no {target}"
    if anchor and path.suffix == ".md" and anchor not in anchors(path.resolve()):
        return f"no heading {target}"
    if path.suffix != ".cpp" or "/tests/" not in str(path.resolve()):
        return None
    known = cases(path.resolve())
    if title and title.replace('\\"', '"') not in known:
        return f'{name} has no test case "{title}"'
    if not title and known and str(page) == PROMISES:
        return f"the link to {name} names no test case"
    return None


def is_tested(text):
    return any("tests/" in target for target, _ in LINK.findall(text))


def without_test(text):
    """(line, what) of each promise that names no test."""
    blocks = re.split(r"\n(?=\n|## |- |\|)", text)
    line, section, said, header = 1, None, False, False
    for block in blocks:
        at, block_lines = line + (len(block) - len(block.lstrip("\n"))), block.strip("\n")
        line += block.count("\n") + 1
        if block_lines.startswith("## "):
            if section and not said:
                yield section
            section, said = (at, f"section '{block_lines.splitlines()[0][3:]}'"), False
        said = said or is_tested(block_lines)
        if block_lines.startswith("- ") and section and not is_tested(block_lines):
            yield at, "item: " + block_lines.splitlines()[0]
        if not block_lines.startswith("|"):
            header = True
        elif header:
            header = False
        elif not re.match(r"\|[-|: ]+$", block_lines) and not is_tested(block_lines):
            yield at, "row: " + block_lines
    if section and not said:
        yield section


def legs_not_explained():
    """Each leg of tests/run.sh has a row in docs/testing.md, and the other way round."""
    script = (ROOT / "tests/run.sh").read_text()
    legs = set(re.findall(r"^        ([a-z][\w-]+)\) (?:compiler|script)_leg", script, re.M)) \
        | set(re.search(r"^all_legs=\((.*)\)", script, re.M)[1].split())
    page = (ROOT / "docs/testing.md").read_text().partition("## Which tests there are")[0]
    rows = set(re.findall(r"^\| `([\w-]+)`[^|]*\|[^|]*\|[^|]*\|$", page, re.M))
    return [f"docs/testing.md: the leg {leg} of tests/run.sh has no row" for leg in legs - rows] \
        + [f"docs/testing.md: tests/run.sh has no leg {leg}" for leg in rows - legs]


def check():
    complaints = legs_not_explained()
    for page in files("README.md", "docs/**/*.md", ".github/*.md"):
        text = with_references(page, without_code((ROOT / page).read_text()), complaints)
        for match in LINK.finditer(text):
            if re.match(r"[a-z]+:", match[1]):
                continue
            if wrong := broken(page, match[1], match[2]):
                number = text.count("\n", 0, match.start()) + 1
                complaints.append(f"{page}:{number}: {wrong}")
    text = with_references(PROMISES, without_code((ROOT / PROMISES).read_text()), [])
    complaints += [f"{PROMISES}:{line}: no test is named for {what}"
                   for line, what in without_test(text)]
    return complaints


if __name__ == "__main__":
    found = check()
    print("\n".join(found) or "links: fine")
    sys.exit(bool(found))
