#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Without this file a command may get away from under its lease: by passing itself on, by multiplying, as a child of
process 1, or from within another hold; and what amuxctl has not started may be ended with it."""
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

import harness
from harness import runs, wait_for

# Never for long the same process: one look at all processes, one after the other, finds it at times and at times not.
WANDERER = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write({ready}, b"x")
for n in range(200000):
    if os.fork():
        os._exit(0)
    if n % 3 == 0:
        os.setsid()
"""

# Each in a session of its own, and whoever loses a child gets another.
BROOD = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def live(depth):
    os.setsid()
    if depth == 6:
        os.write({ready}, b"x")
        while True:
            signal.pause()
    for child in range(2):
        if os.fork() == 0:
            live(depth + 1)
    while True:
        os.wait()
        if os.fork() == 0:
            live(depth + 1)
live(0)
"""

DAEMON = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write({ready}, b"x")
if os.fork():
    os._exit(0)
os.setsid()
time.sleep({delay})
if os.fork():
    os._exit(0)
signal.pause()
"""

# It starts no process: what has no environment from its birth is nobody's.
CHANGELING = """
import os, signal
def change(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execve("{python}", ["{python}", "-ISc", "import signal; signal.pause()"], {{}})
signal.signal(signal.SIGTERM, change)
os.write({ready}, b"x")
while True:
    signal.pause()
"""

# One that other users may use too: ours may be in somebody's home.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable

TIMES = ["--ttl", "3s", "--stop-margin", "1200ms", "--kill-after", "300ms"]  # where the lease is lost
LONG = ["--ttl", "600s", "--kill-after", "300ms"]  # what is free sooner was released


def can(*words):
    return shutil.which(words[0]) and subprocess.run(words, stdout=subprocess.DEVNULL,
                                                     stderr=subprocess.DEVNULL).returncode == 0


class Escape(harness.Case):
    reading, writing = None, None

    def setUp(self):
        super().setUp()
        self.addCleanup(self.close_pipe)
        self.make_pipe()

    def make_pipe(self):
        self.close_pipe()
        self.reading, self.writing = os.pipe()

    def close_pipe(self):
        for end in (self.reading, self.writing):
            if end is not None:
                os.close(end)
        self.reading, self.writing = None, None

    def python(self, script, **values):
        return [PYTHON, "-ISc", script.format(ready=self.writing, **values)]

    def hold(self, *words, before=()):
        """What it starts has the one end of a pipe: as long as any of it lives, the other end has no end."""
        p = subprocess.Popen([*before, harness.AMUXCTL, "hold", *words], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(),
                             pass_fds=[self.writing])
        self.started.append(p)
        os.close(self.writing)
        self.writing = None
        return p

    def wait_until_begun(self, number=1):
        for _ in range(number):
            self.assertTrue(select.select([self.reading], [], [], harness.LIMIT)[0])
            self.assertEqual(os.read(self.reading, 1), b"x")

    def assert_all_have_ended(self):
        """Now, not soon."""
        while select.select([self.reading], [], [], 0)[0]:
            if os.read(self.reading, 4096) == b"":
                return
        self.fail("something of the command is alive")

    def test_who_passes_itself_on_is_ended_before_the_release(self):
        p = self.hold(*LONG, "k", "--", *self.python(WANDERER))
        self.assertEqual(p.wait(harness.LIMIT), 0)
        self.assert_all_have_ended()
        self.assertFalse(self.server.held("k"))

    def test_who_passes_itself_on_is_ended_when_the_lease_is_lost(self):
        p = self.hold(*TIMES, "k", "--", "sh", "-c", '"$@" & sleep 600', "-", *self.python(WANDERER))
        self.wait_until_begun()
        self.server.ask("DEL", "{amux}:lock:k")
        self.assertEqual(p.wait(harness.LIMIT), 122)
        self.assert_all_have_ended()

    def test_who_passes_itself_on_does_not_outlive_a_stopped_amuxctl_s_lease(self):
        p = self.hold(*TIMES, "k", "--", "sh", "-c", '"$@" & sleep 600', "-", *self.python(WANDERER))
        self.wait_until_begun()
        p.send_signal(signal.SIGSTOP)
        self.server.ask("DEL", "{amux}:lock:k")
        self.assertTrue(select.select([self.reading], [], [], harness.LIMIT)[0], "the keeper has not ended it")
        self.assert_all_have_ended()
        p.send_signal(signal.SIGCONT)
        self.assertEqual(p.wait(harness.LIMIT), 122)

    def test_who_multiplies_is_ended_before_the_release(self):
        p = self.hold(*LONG, "k", "--", "sh", "-c", '"$@" & read line', "-", *self.python(BROOD))
        self.wait_until_begun(64)
        p.stdin.close()
        self.assertEqual(p.wait(harness.LIMIT), 1)
        self.assert_all_have_ended()
        self.assertFalse(self.server.held("k"))

    def test_who_becomes_a_daemon_as_amuxctl_is_killed_is_ended_before_the_release(self):
        for number in range(8):
            with self.subTest(number=number):
                self.make_pipe()
                key = f"k{number}"
                p = self.hold("--ttl", "600s", "--kill-after", "100ms", key, "--",
                              *self.python(DAEMON, delay=0.002 * number))
                self.wait_until_begun()
                p.kill()
                self.wait_until_free(key)
                self.assert_all_have_ended()

    def test_a_hold_within_a_hold_goes_with_the_outer_one_that_is_killed(self):
        inner = [harness.AMUXCTL, "hold", "--ttl", "3s", "--stop-margin", "1500ms", "--kill-after", "1400ms", "inner"]
        p = self.hold("--ttl", "600s", "--kill-after", "100ms", "outer", "--", *inner, "--", "sh", "-c",
                      '"$@" & sleep 600', "-", *self.python(DAEMON, delay=0))
        self.wait_until_begun()
        p.kill()
        self.wait_until_free("outer")
        self.assert_all_have_ended()
        self.wait_until_free("inner")

    def test_a_command_of_another_user_does_not_outlive_amuxctl(self):
        other = ["setpriv", "--reuid", "65534", "--clear-groups"]
        if not can(*other, "true"):
            self.skipTest("we may not become somebody else")
        p = self.hold("--ttl", "600s", "--stop-margin", "200s", "--kill-after", "100s", "k", "--", *other,
                      *self.python("import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                                   "os.write({ready}, b'x'); signal.pause()"))
        self.wait_until_begun()
        p.kill()
        self.assertTrue(select.select([self.reading], [], [], harness.LIMIT)[0], "it is alive")
        self.wait_until_free("k")
        self.assert_all_have_ended()

    def hold_with_hidden_users(self, capabilities, *words):
        """Processes of other users are not in the /proc of this amuxctl. The rights decide whether it can kill them."""
        before = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2,gid=65533 proc /proc; exec "$@"', "-", "setpriv",
                  "--clear-groups", "--bounding-set", "-all," + capabilities]
        if not can(*before, "setpriv", "--reuid", "65534", PYTHON, "-c", ""):
            self.skipTest("we may not mount a /proc, or others may not use our Python")
        return self.hold(*LONG, "k", "--", *words, before=before)

    def test_a_hidden_process_is_ended_before_the_release(self):
        p = self.hold_with_hidden_users(
            "+setuid,+kill", "sh", "-c", 'setpriv --reuid 65534 "$@" & read line', "-", *self.python(BROOD))
        self.wait_until_begun(64)
        p.stdin.close()
        self.assertEqual(p.wait(harness.LIMIT), 1)
        self.assert_all_have_ended()
        self.assertFalse(self.server.held("k"))

    def test_a_hidden_process_that_cannot_be_killed_keeps_the_key(self):
        p = self.hold_with_hidden_users(
            "+setuid", "sh", "-c", 'setpriv --reuid 65534 "$@" & read line', "-",
            *self.python("import os, time; os.write({ready}, b'x'); time.sleep(1.2)"))
        self.wait_until_begun()
        p.stdin.close()
        self.assertEqual(p.wait(harness.LIMIT), 1)
        self.assert_all_have_ended()

    STUBBORN = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write({ready}, b'x'); signal.pause()"

    def test_an_amuxctl_that_can_open_nothing_ends_what_is_left_before_the_release(self):
        p = self.hold(*LONG, "k", "--", "sh", "-c", 'setsid sh -c \'"$@" & wait\' - "$@" & read line', "-",
                      *self.python(self.STUBBORN))
        self.wait_until_begun()
        resource.prlimit(p.pid, resource.RLIMIT_NOFILE, (3, 3))  # with less it could not poll
        p.stdin.close()
        self.assertEqual(p.wait(harness.LIMIT), 1)
        self.assert_all_have_ended()
        self.assertFalse(self.server.held("k"))

    def test_a_keeper_that_can_open_nothing_keeps_the_key_until_it_can(self):
        p = self.hold("--ttl", "600s", "--kill-after", "100ms", "k", "--", "sh", "-c", 'setsid "$@" & read line', "-",
                      *self.python(self.STUBBORN))
        self.wait_until_begun()
        keeper = self.keeper_of(p.pid)
        before = resource.prlimit(keeper, resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        p.kill()
        time.sleep(0.4)
        self.assertTrue(self.server.held("k"))
        resource.prlimit(keeper, resource.RLIMIT_NOFILE, before)
        self.wait_until_free("k")
        self.assert_all_have_ended()

    def test_what_begins_programs_without_end_is_found_when_amuxctl_was_killed(self):
        again = self.folder / "again"
        again.write_text(f"exec sh {again}\n")
        for _ in range(2):
            self.make_pipe()
            p = self.hold("--kill-after", "2s", "k", "--", "sh", "-c", 'setsid "$@" & read line', "-", *self.python(
                "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write({ready}, b'x'); "
                "os.execvp('sh', ['sh', '{again}'])", again=again))
            self.wait_until_begun()
            p.kill()
            self.wait_until_free("k")
            self.assert_all_have_ended()

    def test_what_throws_its_environment_out_when_it_is_told_to_end_is_ended(self):
        p = self.hold("--kill-after", "1s", "k", "--", "sh", "-c", 'setsid "$@" & read line', "-",
                      *self.python(CHANGELING, python=PYTHON))
        self.wait_until_begun()
        p.kill()
        self.wait_until_free("k")
        self.assert_all_have_ended()

    def test_as_process_1_amuxctl_ends_what_has_left_the_group(self):
        alone = ("unshare", "--pid", "--fork", "--mount-proc")
        if not can(*alone, "true"):
            self.skipTest("no PID namespace of our own")
        p = self.hold(*TIMES, "k", "--", "sh", "-c", '"$@" & sleep 600', "-", *self.python(DAEMON, delay=0),
                      before=alone)
        self.wait_until_begun()
        front = [pid for pid, q in harness.processes().items() if q.parent == p.pid and q.name == "amuxctl"][0]

        def left():
            return [pid for pid, q in harness.processes().items() if q.parent == front and
                    q.name.startswith("python") and q.state not in "ZX"]
        # The kernel would end it with process 1: so that one is stopped, and the keeper must see to it.
        wait_for(left, "it is there")
        os.kill(front, signal.SIGSTOP)
        self.server.ask("DEL", "{amux}:lock:k")
        wait_for(lambda: not left(), "the keeper has ended it")
        os.kill(front, signal.SIGCONT)
        self.assertEqual(p.wait(harness.LIMIT), 122)

    def test_with_the_proc_of_another_namespace_it_does_not_begin(self):
        alone = ("unshare", "--pid", "--fork")
        if not can(*alone, "true"):
            self.skipTest("no PID namespace of our own")
        p = self.hold("k", "--", "touch", f"{self.folder}/ran", before=alone)
        self.assertEqual(p.wait(harness.LIMIT), 125)
        self.assertIn(b"/proc is that of another PID namespace", p.stderr.read())
        self.assertFalse((self.folder / "ran").exists())

    def test_what_the_caller_had_started_is_none_of_its_business(self):
        script = f'sleep 600 & echo $! >{self.folder}/job; (exit 3) & exec "$@"'
        p = subprocess.Popen(["sh", "-c", script, "-", harness.AMUXCTL, "hold", *LONG, "k", "--", "sh", "-c",
                              "setsid sleep 600 & exit 4"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             env=self.environment())
        self.started.append(p)
        self.assertEqual(p.wait(harness.LIMIT), 4)
        job = int((self.folder / "job").read_text())
        self.assertTrue(runs(job))
        self.assertEqual([pid for pid, q in harness.processes().items() if q.parent == os.getpid() and
                          q.name == "sleep"], [job])


if __name__ == "__main__":
    harness.main()
