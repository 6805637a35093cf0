#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Without this file nothing shows that a command of amuxctl ends with its lease, and the lease with its command."""
import os
import select
import signal
import subprocess
import time

import harness
from harness import now, runs, wait_for

# Long enough for a slow machine to renew in time, short enough to wait for.
TIMES = ["--ttl", "3s", "--stop-margin", "1200ms", "--kill-after", "500ms"]
LONG = ["--ttl", "600s"]  # what is free sooner was released


class Life(harness.Case):
    def test_exit_codes_are_those_of_the_command(self):
        for script, code in (("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137),
                             ("kill -15 $$", 143)):
            self.assertEqual(self.run_it("hold", "codes", "--", "sh", "-c", script)[0], code, script)
        self.assertFalse(self.server.held("codes"))

    def test_what_cannot_be_executed_is_told_as_env_tells_it(self):
        code, _, err = self.run_it("hold", "k", "/etc/passwd")
        self.assertEqual((code, "cannot execute /etc/passwd" in err), (126, True))
        code, _, err = self.run_it("hold", "k", "no-such-command-anywhere")
        self.assertEqual((code, "cannot execute no-such-command-anywhere" in err), (127, True))
        self.assertFalse(self.server.held("k"))

    def test_the_command_finds_its_lease_in_the_environment(self):
        code, out, _ = self.run_it("hold", "a key", "--metadata", "me", "--", "sh", "-c",
                                   'echo "$AMUX_KEY|$AMUX_TOKEN|$AMUX_FENCE"; '
                                   + harness.AMUXCTL + ' inspect "a key"')
        first, second = out.splitlines()
        key, token, fence = first.split("|")
        self.assertEqual((code, key, len(token)), (0, "a key", 32))
        self.assertIn(f"token {token}  fence {fence}", second)
        self.assertTrue(second.endswith("  me"), second)

    def test_the_command_is_started_as_without_amuxctl(self):
        def ignore_some():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR1})
        for look in (["grep", "-E", "^(SigBlk|SigIgn)", "/proc/self/status"], ["ls", "/proc/self/fd"], ["cat"],
                     ["sh", "-c", "pwd; umask; ulimit -n"]):
            how = {"input": b"what is typed\n", "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
                   "env": self.environment(), "preexec_fn": ignore_some}
            plain = subprocess.run(look, **how).stdout
            held = subprocess.run([harness.AMUXCTL, "hold", "k", "--", *look], **how).stdout
            self.assertEqual(held, plain)
            self.assertNotEqual(held, b"")

    def test_descriptors_of_the_caller_reach_the_command_and_are_kept_by_it_alone(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        p = self.start("hold", "k", "--", "sh", "-c", f"echo hello >&{writing}; "
                       f"exec {writing}>&- >&-; sleep 600", pass_fds=[writing])
        os.close(writing)
        for stream, text in ((reading, b"hello\n"), (p.stdout.fileno(), b"")):
            got = b""
            while True:  # to its end, which comes while the command runs
                self.assertTrue(select.select([stream], [], [], harness.LIMIT)[0], "somebody keeps it open")
                part = os.read(stream, 100)
                if not part:
                    break
                got += part
            self.assertEqual(got, text)
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(harness.LIMIT), 143)

    def test_signals_are_passed_on_and_the_lease_goes_when_the_command_has_ended(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            name = f"worker{number}"
            p = self.start("hold", *LONG, name, "--", *self.worker(name))
            pid = self.worker_pid(name)
            p.send_signal(number)
            self.assertEqual(p.wait(harness.LIMIT), 128 + number)
            self.assertFalse(runs(pid))
            self.assertFalse(self.server.held(name))

    def test_a_command_that_takes_its_time_over_sigterm_keeps_the_lease_meanwhile(self):
        p = self.start("hold", *TIMES, "k", "--", "sh", "-c",
                       f"trap 'sleep 4; exit 5' TERM; echo >{self.folder}/ready; "
                       "while :; do sleep 0.05; done")
        wait_for((self.folder / "ready").exists, "the command runs")
        p.send_signal(signal.SIGTERM)
        while p.poll() is None:
            self.assertTrue(self.server.held("k") or p.wait(harness.LIMIT) is not None)
            time.sleep(0.05)
        self.assertEqual(p.returncode, 5)
        self.assertFalse(self.server.held("k"))

    def test_a_signal_ends_the_wait_for_the_key(self):
        holder = self.start("hold", *LONG, "k", "--", *self.worker())
        self.worker_pid()
        waiting = self.start("hold", "--wait", "forever", "k", "--", "touch", f"{self.folder}/ran")
        self.keeper_of(waiting.pid)
        time.sleep(0.2)
        waiting.send_signal(signal.SIGTERM)
        self.assertEqual(waiting.wait(harness.LIMIT), 143)
        holder.send_signal(signal.SIGTERM)
        holder.wait(harness.LIMIT)
        self.assertFalse(self.server.held("k"))
        self.assertFalse((self.folder / "ran").exists())

    def test_a_key_that_is_granted_as_the_wait_ends_is_given_back(self):
        """The server is stopped while a request is under way: it grants the key when nobody waits for it any more."""
        ends = now() + 4
        self.server.ask("SET", "{amux}:lock:k", "amux1:1:t:7:somebody", "PX", "4000")
        p = self.start("hold", *LONG, "k", "--", "touch", f"{self.folder}/ran")
        wait_for(lambda: self.server.ask("PUBSUB", "CHANNELS") == "*1\r\n", "it waits")
        time.sleep(0.2)  # and knows for how long
        os.kill(self.server.process.pid, signal.SIGSTOP)
        time.sleep(max(0, ends + 0.5 - now()))  # the key is free by now, and somebody asks for it
        p.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        os.kill(self.server.process.pid, signal.SIGCONT)
        self.assertEqual(p.wait(harness.LIMIT), 143)
        self.wait_until_free("k")
        self.assertFalse((self.folder / "ran").exists())

    def test_a_key_that_is_deleted_ends_the_command(self):
        p = self.start("hold", *TIMES, "k", "--", *self.worker())
        self.worker_pid()
        deleted = now()
        self.server.ask("DEL", "{amux}:lock:k")
        self.assertEqual(p.wait(harness.LIMIT), 122)
        self.assertLess(self.last_beat(), deleted + 3)
        self.assertIn(b"lost", p.stderr.read())

    def test_a_lost_lease_tells_also_what_has_left_the_group_and_once_only(self):
        told = self.folder / "told"
        child = (f"trap 'echo x >>{told}' TERM; echo >>{self.folder}/ready; "
                 "while :; do sleep 0.05; done")
        (self.folder / "child").write_text(child)
        patient = ["--ttl", "6s", "--stop-margin", "2900ms", "--kill-after", "2400ms"]  # both have that long to say it
        p = self.start("hold", *patient, "k", "--", "sh", "-c", f"sh {self.folder}/child & setsid sh {self.folder}/child & "
                       "wait")
        ready = self.folder / "ready"
        wait_for(lambda: ready.exists() and ready.read_text() == "\n\n", "both run")
        self.server.ask("DEL", "{amux}:lock:k")
        self.assertEqual(p.wait(harness.LIMIT), 122)
        self.assertEqual(told.read_text(), "x\nx\n")

    def test_a_command_that_ignores_sigterm_is_killed_before_its_lease_is_over(self):
        own = harness.Server()
        try:
            p = self.start("hold", *TIMES, "k", "--", *self.worker(ignores="SIGTERM"),
                           env={**self.environment(), "AMUX_URL": own.url()})
            pid = self.worker_pid()
            time.sleep(1.5)  # renewed by now
            own.kill()
            killed = now()
            self.assertEqual(p.wait(harness.LIMIT), 122)
            self.assertFalse(runs(pid))
            # The last renewal began before the server was killed: by then plus a ttl nobody may believe any more.
            self.assertLess(self.last_beat(), killed + 3)
            self.assertNotIn(b"not released", p.stderr.read())  # that the server is away was said
        finally:
            own.close()

    def test_a_release_that_meets_trouble_is_told_and_the_exit_code_is_that_of_the_command(self):
        own = harness.Server()
        self.addCleanup(own.close)
        p = self.start("hold", *LONG, "k", "--", "sh", "-c", "read line; exit 4", stdin=subprocess.PIPE,
                       env={**self.environment(), "AMUX_URL": own.url()})
        wait_for(lambda: own.held("k"), "it is held")
        own.kill()
        p.stdin.close()
        self.assertEqual(p.wait(harness.LIMIT), 4)
        self.assertRegex(p.stderr.read(), b"^amuxctl: k: not released, so taken until its time is up: (?!amux)")

    def test_what_the_command_leaves_running_is_ended_before_the_release(self):
        script = (f"sleep 600 & echo $! >>{self.folder}/left; "
                  f"setsid sh -c 'trap \"\" TERM; echo $$ >>{self.folder}/left; while :; do sleep 0.05; done' & "
                  f"until [ $(wc -l <{self.folder}/left) = 2 ]; do sleep 0.01; done; exit 3")
        code, _, err = self.run_it("hold", "k", *TIMES, "--", "sh", "-c", script)
        self.assertEqual(code, 3, err)
        for pid in (self.folder / "left").read_text().split():
            self.assertFalse(runs(int(pid)))
        self.assertFalse(self.server.held("k"))

    def test_the_dead_that_fall_to_amuxctl_are_buried_while_the_command_runs(self):
        p = self.start("hold", "k", "--", "sh", "-c", "for n in $(seq 30); do sh -c '(sleep 0.1 &)'; done; "
                       "echo done; read line", stdin=subprocess.PIPE)
        self.assertEqual(p.stdout.readline(), b"done\n")
        wait_for(lambda: not [q for q in harness.processes().values() if q.parent == p.pid and q.state == "Z"]
                 and not [q for q in harness.processes().values() if q.parent == p.pid and q.name == "sleep"],
                 "nothing of it is left")
        self.assertEqual(p.poll(), None)
        p.stdin.write(b"\n")
        p.stdin.flush()
        self.assertEqual(p.wait(harness.LIMIT), 0)

    def test_kill_9_of_amuxctl_ends_the_command_and_what_it_has_started_and_frees_the_key(self):
        script = (f"setsid sh -c 'trap \"\" TERM; echo $$ >>{self.folder}/left; while :; do sleep 0.05; done' & "
                  f"sh -c 'echo $$ >>{self.folder}/left; sleep 600; :' & "
                  f"echo $$ >>{self.folder}/left; wait")
        p = self.start("hold", "--ttl", "600s", "--kill-after", "300ms", "k", "--", "sh", "-c", script)
        left = self.folder / "left"
        wait_for(lambda: left.exists() and left.read_text().count("\n") == 3, "all are there")
        p.kill()
        for pid in left.read_text().split():
            wait_for(lambda pid=pid: not runs(int(pid)), f"{pid} has ended")
        self.wait_until_free("k")

    def test_kill_9_of_the_group_of_amuxctl_does_not_meet_the_keeper(self):
        p = self.start("hold", *LONG, "k", "--", *self.worker(), start_new_session=True)
        pid = self.worker_pid()
        os.killpg(p.pid, signal.SIGKILL)
        wait_for(lambda: not runs(pid), "the command has ended")
        self.wait_until_free("k")

    def test_kill_9_of_the_keeper_ends_the_command_and_frees_the_key(self):
        p = self.start("hold", *LONG, "k", "--", *self.worker())
        pid = self.worker_pid()
        os.kill(self.keeper_of(p.pid), signal.SIGKILL)
        self.assertEqual(p.wait(harness.LIMIT), 122)
        self.assertFalse(runs(pid))
        self.assertFalse(self.server.held("k"))

    def test_kill_9_of_both_kills_the_command_and_the_key_is_free_after_a_ttl(self):
        p = self.start("hold", *TIMES, "k", "--", *self.worker())
        pid = self.worker_pid()
        keeper = self.keeper_of(p.pid)
        os.kill(keeper, signal.SIGSTOP)  # or it would still end in good order
        p.kill()
        wait_for(lambda: not runs(pid), "the command has ended")
        os.kill(keeper, signal.SIGKILL)
        self.wait_until_free("k")

    def test_a_stopped_keeper_ends_the_command_in_time(self):
        p = self.start("hold", *TIMES, "k", "--", *self.worker(ignores="SIGTERM"))
        self.worker_pid()
        os.kill(self.keeper_of(p.pid), signal.SIGSTOP)
        stopped = now()
        self.assertEqual(p.wait(harness.LIMIT), 122)
        self.assertLess(self.last_beat(), stopped + 3)
        self.wait_until_free("k")

    def test_a_keeper_that_is_stopped_while_it_waits_does_not_keep_amuxctl_waiting(self):
        self.server.ask("SET", "{amux}:lock:k", "other", "PX", "60000")
        p = self.start("hold", "--wait", "4s", "k", "--", "true")
        os.kill(self.keeper_of(p.pid), signal.SIGSTOP)
        self.assertEqual(p.wait(harness.LIMIT), 125)
        self.server.ask("DEL", "{amux}:lock:k")  # the server is that of the next test, too

    def test_a_stopped_amuxctl_keeps_its_lease_and_loses_its_command_with_it(self):
        p = self.start("hold", "--ttl", "6s", "--stop-margin", "1200ms", "--kill-after", "500ms", "k", "--", *self.worker())
        pid = self.worker_pid()
        p.send_signal(signal.SIGSTOP)
        time.sleep(7)  # longer than a ttl: it was renewed
        self.assertTrue(self.server.held("k"))
        self.assertTrue(runs(pid))
        self.server.ask("DEL", "{amux}:lock:k")
        deleted = now()
        wait_for(lambda: not runs(pid), "the keeper has killed the command")
        self.assertLess(self.last_beat(), deleted + 6)
        p.send_signal(signal.SIGCONT)
        self.assertEqual(p.wait(harness.LIMIT), 122)

    def test_both_stopped_for_longer_than_the_ttl_end_the_command_when_they_go_on(self):
        """What a machine that sleeps looks like, but for the command, which would sleep too."""
        p = self.start("hold", *TIMES, "k", "--", *self.worker(ignores="SIGTERM"))
        pid = self.worker_pid()
        both = (p.pid, self.keeper_of(p.pid))
        for process in both:
            os.kill(process, signal.SIGSTOP)
        self.wait_until_free("k")
        self.assertTrue(runs(pid))
        for process in both:
            os.kill(process, signal.SIGCONT)
        self.assertEqual(p.wait(harness.LIMIT), 122)
        self.assertFalse(runs(pid))

    def test_an_amuxctl_that_is_stopped_while_it_waits_keeps_no_lease_and_starts_nothing(self):
        holder = self.start("hold", *LONG, "k", "--", *self.worker())
        self.worker_pid()
        waiting = self.start("hold", *TIMES, "--wait", "forever", "k", "--", "touch", f"{self.folder}/ran")
        self.keeper_of(waiting.pid)
        time.sleep(0.2)
        waiting.send_signal(signal.SIGSTOP)
        holder.send_signal(signal.SIGTERM)
        holder.wait(harness.LIMIT)
        wait_for(lambda: self.server.held("k"), "the waiting one has the key")
        self.wait_until_free("k")
        waiting.send_signal(signal.SIGCONT)
        self.assertEqual(waiting.wait(harness.LIMIT), 122)
        self.assertFalse((self.folder / "ran").exists())


if __name__ == "__main__":
    harness.main()
