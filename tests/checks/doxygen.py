#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""No public name of the headers lacks a contract: a `///` comment that doxygen finds at it.

Overloads share one. None is asked of what the language makes everybody write: copying, moving and
destroying (the class says what that does), and the three functions of an awaiter.
"""
import os
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree as xml

from common import INCLUDE, ROOT, run

# Inside, but seen from outside: as `asyncmux<Key>::guard`, and as the base of the loops.
EXPOSED = {"amux::detail::mux_guard", "amux::detail::loop_base"}
PROTOCOL = {"await_ready", "await_suspend", "await_resume"}
SETTINGS = """
INPUT = {include}/amux
RECURSIVE = YES
FILE_PATTERNS = *.hpp
OUTPUT_DIRECTORY = {output}
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
EXTRACT_PRIVATE = YES
JAVADOC_AUTOBRIEF = YES
QUIET = YES
PREDEFINED = AMUX_REDIS_TLS
WARNINGS = NO
"""


def text_of(element):
    return "".join(element.itertext()).strip() if element is not None else ""


def is_public(compounds, name):
    """False for what lies in a private class, however deep."""
    while name in compounds:
        outer, _, own = name.rpartition("::")
        if outer in compounds and (name in compounds[outer]["private"]
                                   or is_declared_private(compounds[outer], own)):
            return False
        name = outer
    return True


def is_declared_private(outer, own):
    """Doxygen takes a class that is defined outside of its class for a public one."""
    if outer["element"].get("kind") not in ("class", "struct"):
        return False
    access = "public" if outer["element"].get("kind") == "struct" else "private"
    where = outer["where"]
    lines = pathlib.Path(ROOT, where.get("file")).read_text().splitlines()
    for line in lines[int(where.get("line")):]:
        if line.startswith("}"):
            return False
        if said := re.match(r"(public|protected|private):", line):
            access = said[1]
        elif re.match(rf" {{4}}(?:class|struct) {own};", line):
            return access != "public"
    return False


def is_exempt(member, owner):
    name, arguments = member.findtext("name"), member.findtext("argsstring") or ""
    own = re.sub(r"<.*", "", owner).rpartition("::")[2]
    if member.get("kind") == "friend" or name in PROTOCOL or name.startswith("~"):
        return True
    if re.search(r"=\s*(?:delete|default)\s*$", arguments):
        return True
    copies = re.match(rf"\((?:const )?{own}\s*&&?\s*\w*\)", arguments)
    return bool(copies) and name in (own, "operator=")


def read(folder):
    """(compounds by name, every place where something is declared)."""
    compounds, seen = {}, set()
    for path in sorted(folder.glob("*.xml")):
        for compound in xml.parse(path).getroot().iter("compounddef"):
            name, where = compound.findtext("compoundname"), compound.find("location")
            if compound.get("kind") == "dir":
                continue
            compounds[name] = {
                "element": compound, "where": where,
                "private": {text_of(inner) for inner in compound.iter("innerclass")
                            if inner.get("prot") != "public"}}
            for place in compound.iter("location"):
                seen.add((place.get("file"), int(place.get("line") or 0)))
                seen.add((place.get("bodyfile"), int(place.get("bodystart") or 0)))
    return compounds, seen


def lacking(compounds):
    def is_inside(path, name):
        return "/detail/" in path or ("detail" in name.split("::") and name not in EXPOSED)

    for name, compound in compounds.items():
        element, where = compound["element"], compound["where"]
        if name.startswith("fmt") or not is_public(compounds, name):
            continue
        kind = element.get("kind")
        if kind in ("class", "struct", "union", "concept") and name not in EXPOSED \
                and not is_inside(where.get("file"), name) \
                and not text_of(element.find("briefdescription")):
            yield where, f"{kind} {name}"
        members = [m for m in element.iter("memberdef") if m.get("prot") == "public"
                   and (kind != "file" or m.get("kind") == "define")]
        documented = {m.findtext("name") for m in members if text_of(m.find("briefdescription"))}
        for member in members:
            here = member.find("location")
            if is_inside(here.get("file"), name) and name not in EXPOSED:
                continue
            if member.findtext("name") not in documented and not is_exempt(member, name):
                yield here, f"{member.get('kind')} {name}::{member.findtext('name')}" \
                    + (member.findtext("argsstring") or "")


def overlooked(seen):
    """Comments below which doxygen has found nothing: what follows there was not checked."""
    for path in sorted(INCLUDE.rglob("*.hpp")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            if not re.match(r"\s*///", line) or re.match(r"\s*///", lines[number]) \
                    or lines[number - 2].endswith("\\file"):
                continue
            below = range(number + 1, number + 9)
            if not any((str(path), at) in seen for at in below):
                yield f"{path.relative_to(ROOT)}:{number}: doxygen sees nothing below this comment"


def check():
    if not shutil.which("doxygen"):
        return ["doxygen is not installed"]
    build = pathlib.Path(os.environ.get("AMUX_BUILD_ROOT") or ROOT / "build") / "doxygen"
    shutil.rmtree(build / "xml", ignore_errors=True)
    build.mkdir(parents=True, exist_ok=True)
    (build / "Doxyfile").write_text(SETTINGS.format(include=INCLUDE, output=build))
    code, output = run(["doxygen", build / "Doxyfile"])
    if code != 0:
        return [output]
    compounds, seen = read(build / "xml")
    seen = {(path and str(pathlib.Path(ROOT, path)), line) for path, line in seen}
    found = sorted((str(pathlib.Path(ROOT, where.get("file")).relative_to(ROOT)),
                    int(where.get("line")), what) for where, what in lacking(compounds))
    return [f"{path}:{line}: {what} has no contract" for path, line, what in found] \
        + list(overlooked(seen))


if __name__ == "__main__":
    complaints = check()
    print("\n".join(complaints) or "doxygen: fine")
    sys.exit(bool(complaints))
