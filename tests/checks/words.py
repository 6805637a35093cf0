#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Patterns that must not appear, each with the reason.

A line of a header may carry `// words: allow` where the pattern is meant.
"""
import re
import sys

from common import ROOT, files

IN_HEADERS = [
    (r"\batomic_thread_fence\b", "the thread sanitizer does not understand fences"),
    (r"\b(?:min|max)\s*\(", "write (std::min)(a, b): <windows.h> makes these macros"),
    (r"^static\b", "internal linkage in a header breaks modules and the one-definition rule"),
    (r"\bnamespace\s*\{", "an unnamed namespace in a header breaks modules and the "
                          "one-definition rule"),
    (r"^(?:const|constexpr)\b(?!.*\boperator\b)[^(]*[={;]", "write `inline constexpr`: a constant "
                                                            "of a header is one object"),
    (r"^\s*using\s+namespace\b", "reaches every user"),
    (r"^\s*#\s*define\s+(?!AMUX_)", "macros begin with AMUX_"),
    (r"#\s*include\s*<(?:iostream|ranges|functional|regex|format)>", "heavy for a light header"),
]
# <functional> is what hooks are made of.
MAY_BE_HEAVY = {"include/amux/distributed_lock.hpp", "include/amux/lock_hooks.hpp",
                "include/amux/lease_counters.hpp",
                "include/amux/lock_options.hpp", "include/amux/testing/environment.hpp",
                "include/amux/testing/scripted_calls.hpp"}
EVERYWHERE = [
    (r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b", "finish it, or leave it out"),
    (r"(?<![\w.}$)])/(?:home|root|work|tmp|Users|mnt)/", "a path of somebody's machine"),
]
TOP_LEVEL = {"include", "tests", "examples", "docs", "CMakeLists.txt", "README.md", "LICENSE"}


def without_comments(text):
    """Comments and literals blanked, lines kept."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0]) if match[0][0] == "/" else '""'
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def search(path, text, patterns, original):
    lines = original.splitlines()
    for number, line in enumerate(text.splitlines()):
        for pattern, why in patterns:
            if re.search(pattern, line) and "// words: allow" not in lines[number]:
                yield f"{path}:{number + 1}: {lines[number].strip()}  ({why})"


def check():
    complaints = []
    for path in files("include/**/*.hpp"):
        text = (ROOT / path).read_text()
        patterns = [p for p in IN_HEADERS
                    if "functional" not in p[0] or str(path) not in MAY_BE_HEAVY]
        complaints += search(path, without_comments(text), patterns, text)
        if "#pragma once" not in text:
            complaints.append(f"{path}: no #pragma once")

    sources = files("CMakeLists.txt", "**/CMakeLists.txt", "**/*.cmake", "include/**/*", ".ci/*",
                    "tests/**/*", "examples/**/*")
    sources = [path for path in sources if not path.parts[0].startswith("build")]
    for path in sources + files("README.md", "docs/**/*.md", ".github/*"):
        text = (ROOT / path).read_text(errors="replace")
        complaints += search(path, text, EVERYWHERE, text)
        if "\t" in text or re.search(r"[ \t]+$", text, re.M):
            complaints.append(f"{path}: a tab, or a space at the end of a line")
    for path in sources:
        if path.suffix in {".hpp", ".cpp", ".py", ".sh", ".cmake"} or path.name in {
                "CMakeLists.txt", "run"}:
            head = (ROOT / path).read_text().splitlines()[:2]
            if not any("SPDX-License-Identifier: BSL-1.0" in line for line in head):
                complaints.append(f"{path}: no SPDX line")

    present = {path.name for path in ROOT.iterdir() if not path.name.startswith((".", "build"))}
    complaints += [f"{name}: does not belong at the top level"
                   for name in sorted(present - TOP_LEVEL)]
    return complaints


if __name__ == "__main__":
    found = check()
    print("\n".join(found) or "words: fine")
    sys.exit(bool(found))
