# SPDX-License-Identifier: BSL-1.0
"""What the checks share: where things lie, and how to run several commands at a time."""
import concurrent.futures
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
JOBS = int(os.environ.get("AMUX_JOBS", "0")) or os.cpu_count() or 1


def files(*patterns):
    """Paths below ROOT, relative to it, in a stable order."""
    return sorted({path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern)
                   if path.is_file() and "__pycache__" not in path.parts})


def headers():
    """Names as users include them: amux/asyncmux.hpp and so on."""
    return sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.hpp"))


def run(command, text=None, timeout=600):
    """(exit code, everything it printed)."""
    done = subprocess.run([str(word) for word in command], input=text, text=True, cwd=ROOT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
                          errors="replace")
    return done.returncode, done.stdout


def usable():
    """The headers whose libraries are installed."""
    needs = {"amux/format.hpp": "fmt/core.h",
             "amux/web_httplib.hpp": "httplib.h", "amux/web_beast.hpp": "boost/beast.hpp",
             **{name: "hiredis/hiredis.h" for name in headers() if "redis" in name},
             **{name: "boost/asio.hpp" for name in headers() if "asio" in name}}
    probe = "".join(f"\n#if __has_include(<{need}>)\n{name}\n#endif"
                    for name, need in needs.items())
    _, output = run(["g++", "-std=c++20", "-E", "-P", "-x", "c++", "-"], probe)
    present = output.replace(" ", "").splitlines()
    return [name for name in headers() if name not in needs or name in present]


def in_parallel(function, items):
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(function, items))
