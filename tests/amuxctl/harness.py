# SPDX-License-Identifier: BSL-1.0
"""Without this file no test of amuxctl has a server, a process to signal, or a command that tells how long it lived.

Each test file is a program: `words_test.py AMUXCTL [unittest's arguments]`. It exits with 77 when redis-server is missing.
"""
import collections
import ctypes
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

AMUXCTL = None
LIBC = ctypes.CDLL(None)
LIMIT = 30  # seconds in which whatever is waited for must have happened


WORKER = """
import fcntl, os, signal, sys, time
folder, name, ignores = sys.argv[1:]
signal.signal(signal.SIGINT, signal.SIG_DFL)
for n in ignores.split():
    signal.signal(getattr(signal, n), signal.SIG_IGN)
one = open(folder + "/one", "w")
try:
    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(folder + "/overlap", "w").close()
beat = os.open(f"{folder}/{name}.beat", os.O_CREAT | os.O_WRONLY)
with open(f"{folder}/{name}.pid", "a") as file:
    file.write(f"{os.getpid()}\\n")
while True:
    os.pwrite(beat, b"%020.6f" % time.clock_gettime(time.CLOCK_BOOTTIME), 0)
    time.sleep(0.005)
"""


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wait_for(condition, what):
    end = now() + LIMIT
    while now() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"in {LIMIT} s it did not happen: {what}")


def reserved_port():
    """A port below those that the kernel hands out by itself, and what keeps it from other tests as long as it is open: the
    UDP port of the same number. So nobody else's server comes in the place of one that is down."""
    while True:
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", random.randint(20000, 32000)))
            return mark.getsockname()[1], mark
        except OSError:
            mark.close()


class Server:
    """A Redis server of its own, on a free port of loopback."""

    def __init__(self, *arguments):
        self.folder = tempfile.mkdtemp(prefix="amuxctl-")
        self.arguments = arguments
        self.password = arguments[1] if arguments[:1] == ("--requirepass",) else None
        for _ in range(50):
            self.port, self.reservation = reserved_port()
            if self.start():
                return
            self.reservation.close()
        raise AssertionError("redis-server does not start")

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--dir", self.folder, *self.arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
        while self.process.poll() is None:
            try:
                if self.ask("PING").startswith("+PONG"):
                    return True
            except OSError:
                pass
            time.sleep(0.01)
        return False

    def ask(self, *words):
        """The answer as it comes over the wire; short ones only."""
        return self.ask_all([words])

    def ask_all(self, commands):
        """The answer to the last of them."""
        if self.password:
            commands = [["AUTH", self.password], *commands]
        with socket.create_connection(("127.0.0.1", self.port), 10) as s:
            answers = s.makefile("rb")
            for words in commands:
                s.sendall(b"*%d\r\n" % len(words) + b"".join(
                    b"$%d\r\n%s\r\n" % (len(w), w) for w in (w.encode() for w in words)))
                answer = answers.readline()
            return answer.decode()

    def held(self, key):
        return self.ask("EXISTS", "{amux}:lock:" + key) == ":1\r\n"

    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.reservation.close()
        shutil.rmtree(self.folder, ignore_errors=True)


Process = collections.namedtuple("Process", "parent state name session")


def processes():
    """{number: Process} of all that there are."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        name, rest = stat.split("(", 1)[1].rsplit(")", 1)
        state, parent, _, session = rest.split()[:4]
        found[int(folder.name)] = Process(int(parent), state, name, int(session))
    return found


def send(pid, number):
    """It may have ended since it was looked for."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def runs(pid):
    found = processes().get(pid)
    return found is not None and found.state not in "ZX"


class Case(unittest.TestCase):
    """One server for all of a file, and a folder for each test."""
    server = None
    server_arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.server_arguments)

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="amuxctl-"))
        self.started = []

    def tearDown(self):
        for p in self.started:
            for stream in (p.stdin, p.stdout, p.stderr):
                if stream:
                    stream.close()
        self.end_all()
        for p in self.started:
            p.poll()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_all(self):
        """Of what a test has started nothing goes on, however it has ended: what has lost its parent fell to us."""
        def of_the_test():
            return [pid for pid, p in processes().items() if p.parent == os.getpid() and pid != self.server.process.pid]
        while of_the_test():
            for pid in of_the_test():
                os.kill(pid, signal.SIGKILL)
                try:
                    os.waitpid(pid, 0)
                except ChildProcessError:  # Popen was faster
                    pass

    def environment(self):
        return {**os.environ, "AMUX_URL": self.server.url(), "LC_ALL": "C"}

    def start(self, *words, **how):
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
               "env": self.environment(), **how}
        p = subprocess.Popen([AMUXCTL, *words], **how)
        self.started.append(p)
        return p

    def run_it(self, *words, **how):
        """The exit code, the output, the error output."""
        p = self.start(*words, **how)
        out, err = p.communicate(timeout=LIMIT)
        return p.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    def keeper_of(self, front):
        def look():
            return [pid for pid, p in processes().items() if p.parent == front and p.name == "amux-keeper"]
        return wait_for(look, "the keeper is there")[0]

    def worker(self, name="worker", ignores=""):
        """Words of a command that writes its number, and the time again and again. It says `overlap` when another lives.
        No shell: one that meets a signal between two commands may swallow it."""
        return [sys.executable, "-ISc", WORKER, str(self.folder), name, ignores]

    def worker_pid(self, name="worker"):
        path = self.folder / f"{name}.pid"
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"), "the command runs")
        return int(path.read_text().split()[-1])

    def last_beat(self, name="worker"):
        return float((self.folder / f"{name}.beat").read_text())

    def assert_no_overlap(self):
        self.assertFalse((self.folder / "overlap").exists(), "two commands were alive at a time")

    def wait_until_free(self, key):
        wait_for(lambda: not self.server.held(key), f"{key} is free")


def all_tests(suite):
    return [name for part in suite for name in (all_tests(part) if isinstance(part, unittest.TestSuite)
                                                else [part.id().removeprefix("__main__.")])]


def run_side_by_side():
    """Most of what they do is waiting. Each process has servers of its own, and ends what its own tests have started."""
    names = all_tests(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))
    shares = [share for share in (names[n::3] for n in range(3)) if share]
    runs_of = [subprocess.Popen([sys.executable, sys.argv[0], AMUXCTL, *share], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, preexec_fn=die_with_parent) for share in shares]
    for p in runs_of:
        print(p.communicate()[0].decode(errors="replace"), flush=True)
    return int(any(p.returncode != 0 for p in runs_of))


def main():
    global AMUXCTL
    if not shutil.which("redis-server"):
        print("no redis-server (Debian package: redis-server)")
        sys.exit(77)
    AMUXCTL = sys.argv.pop(1)
    if len(sys.argv) == 1:
        sys.exit(run_side_by_side())
    LIBC.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    # A shell that starts the tests in the background has them ignore some, and what they start would too.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP,
                   signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_DFL)
    unittest.main(verbosity=2)
