#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Without this file amuxctl may take a socket of its own for a standard stream, or wait for who reads its messages while its
lease runs out."""
import fcntl
import json
import os
import signal
import subprocess

import harness
from harness import runs, wait_for

TIMES = ["--ttl", "3s", "--stop-margin", "1200ms", "--kill-after", "500ms"]


class Streams(harness.Case):
    def full_pipe(self):
        """One that takes no byte more, and is read by nobody."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
        try:
            while True:
                os.write(writing, b"x" * 4096)
        except BlockingIOError:
            fcntl.fcntl(writing, fcntl.F_SETFL, 0)
        return writing

    def test_closed_streams_are_closed_for_the_command_too_and_confuse_nobody(self):
        look = 'exec 9>"$1"; shift; ls -l /proc/self/fd >&9; "$@"; echo $? >&9'
        for closed in ((0,), (0, 1), (0, 1, 2), (1, 2), (2,)):
            seen = []
            for front in ([], [harness.AMUXCTL, "hold", *TIMES, "k", "--"]):
                file = self.folder / "seen"
                words = ["sh", "-c", look, "-", str(file), *self.worker(str(len(seen)), "SIGHUP")]
                p = subprocess.Popen([*front, *words], env=self.environment(), stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     preexec_fn=lambda: [os.close(fd) for fd in closed])
                self.started.append(p)
                os.kill(self.worker_pid(str(len(seen))), signal.SIGTERM)
                self.assertEqual(p.wait(harness.LIMIT), 0, closed)
                seen.append([line.split()[-3:-2] for line in file.read_text().splitlines()])
                for old in self.folder.glob("*"):
                    old.unlink()
            self.assertEqual(seen[0], seen[1], closed)
            self.assertFalse(self.server.held("k"))

    def test_without_standard_streams_signals_are_passed_on_and_the_key_is_released(self):
        p = subprocess.Popen([harness.AMUXCTL, "hold", "--ttl", "600s", "k", "--", *self.worker()],
                             env=self.environment(), preexec_fn=lambda: [os.close(fd) for fd in (0, 1, 2)])
        self.started.append(p)
        pid = self.worker_pid()
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(harness.LIMIT), 143)
        self.assertFalse(runs(pid))
        self.assertFalse(self.server.held("k"))

    def test_an_output_that_is_closed_is_an_error(self):
        code = self.start("--help", stdout=None, preexec_fn=lambda: os.close(1)).wait(harness.LIMIT)
        self.assertEqual(code, 125)

    def test_messages_that_nobody_takes_hold_up_nothing(self):
        full = {"stderr": self.full_pipe()}
        told = self.folder / "told"
        waits = f"exec 2>/dev/null; trap 'echo >{told}; exit' TERM; echo >{self.folder}/ready; while :; do sleep 0.05; done"
        lost = self.start("hold", *TIMES, "lost", "--", "sh", "-c", waits, **full)
        leaves = self.start("hold", *TIMES, "leaves", "--", "sh", "-c", "setsid sleep 600 & exit 3", **full)
        verbose = self.start("hold", "-v", "--ttl", "600s", "verbose", "--", *self.worker(), **full)
        wait_for((self.folder / "ready").exists, "it runs")
        self.server.ask("DEL", "{amux}:lock:lost")
        self.worker_pid()
        verbose.send_signal(signal.SIGTERM)
        self.assertEqual([p.wait(harness.LIMIT) for p in (lost, leaves, verbose)], [122, 3, 143])
        self.assertTrue(told.exists())
        self.assertEqual([self.server.held(key) for key in ("leaves", "verbose")], [False, False])

    def test_a_message_that_is_too_long_for_who_takes_it_holds_up_nothing(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        p = self.start("release", b"\x01" * 60000, "token", stderr=writing)
        self.assertEqual(p.wait(harness.LIMIT), 1)
        self.assertTrue(os.read(reading, 100).startswith(rb"amuxctl: \x01\x01"))

    def test_the_terminal_or_pipe_of_others_is_left_as_it_was(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        self.assertEqual(self.start("release", "k", "token", stderr=writing).wait(harness.LIMIT), 1)
        self.assertEqual(fcntl.fcntl(writing, fcntl.F_GETFL) & os.O_NONBLOCK, 0)

    def test_errors_in_json_are_told_in_json(self):
        for words, code, event in ((["hold", "--json"], 2, "usage"), (["--json", "nonsense"], 2, "usage"),
                                   (["--json", "--url", "http://here", "list"], 2, "usage"),
                                   (["--json", "--url", "redis://127.0.0.1:1", "inspect", "k"], 120, "store"),
                                   (["--json", "release", "k", "t"], 1, "refused"),
                                   (["--json", "release", "--force", "k"], 1, "free")):
            got, out, err = self.run_it(*words)
            told = json.loads(err)
            self.assertEqual((got, out, told["event"], err.count("\n")), (code, "", event, 1), words)
            self.assertTrue(told["text"])


if __name__ == "__main__":
    harness.main()
