# SPDX-License-Identifier: BSL-1.0
"""What a file that includes asyncmux.hpp costs the compiler: seconds of processor time, and lines."""
import os
import re
import statistics
import subprocess
import tempfile

USE = """
amux::asyncmux<int> mux;
struct task {
    struct promise_type {
        task get_return_object() { return {}; }
        std::suspend_never initial_suspend() { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() {}
    };
};
task use() { auto guard = co_await mux.lock(1); }
"""


def standard_headers(compiler, include):
    """Those that asyncmux.hpp includes by itself, directly or not."""
    out = subprocess.run([compiler, "-std=c++20", "-I", include, "-MM", "-x", "c++",
                          include / "amux/asyncmux.hpp"], check=True, capture_output=True,
                         text=True).stdout
    text = "".join(open(name).read() for name in out.split() if name.endswith(".hpp"))
    return "\n".join(sorted(set(re.findall(r"^#include <\w+>$", text, re.M))))


def seconds(command, text):
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        process.stdin.write(text)
        process.stdin.close()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


def lines(compiler, include, rounds):
    """Lines of JSON, as the programs print them."""
    files = {"an empty file": "\n",
             "its standard headers alone": standard_headers(compiler, include) + "\n",
             "asyncmux.hpp": "#include <amux/asyncmux.hpp>\n",
             "asyncmux.hpp, and a lock": "#include <amux/asyncmux.hpp>\n" + USE}
    command = [compiler, "-std=c++20", "-I", str(include), "-x", "c++", "-"]
    with tempfile.TemporaryDirectory() as folder:
        taken = {name: [] for name in files}
        for _ in range(rounds or 5):
            for name, text in files.items():
                taken[name].append(seconds(
                    [*command[:-3], "-O2", "-c", "-o", f"{folder}/out.o", *command[-3:]], text))
    for name, values in taken.items():
        yield {"row": "compile time", "contender": name, "unit": "s", "samples": len(values),
               "median": statistics.median(values), "low": min(values), "high": max(values)}
    for name, text in files.items():
        out = subprocess.run([*command[:-3], "-E", "-P", *command[-3:]], input=text, check=True,
                             capture_output=True, text=True).stdout
        count = out.count("\n")
        yield {"row": "preprocessed lines", "contender": name, "unit": "lines", "samples": 1,
               "median": count, "low": count, "high": count}
