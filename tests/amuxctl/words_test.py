#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Without this file nothing holds the words of amuxctl: its options, its answers, its JSON, and its one table."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import harness
from harness import now

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Encrypted(harness.Case):
    """The server on another port too, which speaks TLS."""

    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.mkdtemp(prefix="amuxctl-")
        cls.addClassCleanup(shutil.rmtree, cls.keys)
        cls.certificate = f"{cls.keys}/certificate"
        if not shutil.which("openssl") or subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
                 "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{cls.keys}/key", "-out", cls.certificate],
                stderr=subprocess.DEVNULL).returncode != 0:
            raise unittest.SkipTest("openssl makes no certificate")
        cls.tls_port, reservation = harness.reserved_port()
        cls.addClassCleanup(reservation.close)
        cls.server_arguments = ("--tls-port", str(cls.tls_port), "--tls-cert-file", cls.certificate, "--tls-key-file",
                                f"{cls.keys}/key", "--tls-ca-cert-file", cls.certificate, "--tls-auth-clients", "no")
        super().setUpClass()

    def test_a_server_that_speaks_tls(self):
        url = f"rediss://127.0.0.1:{self.tls_port}?ca_file={self.certificate}"
        code, out, err = self.run_it("--url", url, "hold", "k", "--", harness.AMUXCTL, "--url", url, "list", "--json")
        if "TLS needs" in err:
            self.skipTest("amuxctl was built without TLS")
        self.assertEqual((code, json.loads(out)["key"]), (0, "k"), err)
        code, _, err = self.run_it("--url", url.split("?")[0], "list")
        self.assertEqual((code, "certificate" in err), (120, True), err)


class Words(harness.Case):
    server_arguments = ("--requirepass", "se/cret")

    def environment(self):
        return {**super().environment(), "AMUX_URL": f"redis://:se%2Fcret@127.0.0.1:{self.server.port}"}

    def acquire(self, *words):
        """A holder, once it holds."""
        p = self.start("hold", *words, "--", "sh", "-c", "echo yes; exec sleep 600")
        self.assertEqual(p.stdout.readline(), b"yes\n")
        return p

    def end(self, p):
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(harness.LIMIT), 143)

    def test_bad_words_end_with_2_and_one_clear_line(self):
        for words, said in (
                (["hold"], "hold: which key?"), (["hold", "k"], "hold: which command"),
                (["hold", "k", "--"], "hold: which command"), (["try", "", "true"], "the key is empty"),
                (["hold", "k", "--", ""], "hold: which command"),
                (["inspect"], "inspect: which key?"), (["inspect", ""], "the key is empty"),
                (["release", "k"], "release: which token?"), (["release"], "release: which key?"),
                (["release", "--force", "k", "t"], "too many words"), (["list", "a", "b"], "too many words"),
                (["nonsense"], "no such command 'nonsense'"), (["--nonsense"], "no such option '--nonsense'"),
                (["--json"], "which command?"), (["hold", "--ttl"], "--ttl needs a value"),
                (["hold", "--wait", "--", "k", "true"], "--wait needs a value"),
                (["hold", "k", "--metadata", "--", "--url", "redis://:x@y", "true"], "--metadata needs a value"),
                (["hold", "--json=1", "k", "true"], "--json takes no value"),
                (["try", "--wait", "1s", "k", "true"], "try knows no --wait"),
                (["--ttl", "5s", "inspect", "k"], "inspect knows no --ttl"),
                (["inspect", "k", "--force"], "inspect knows no --force"),
                (["hold", "--busy-code", "256", "k", "true"], "--busy-code is not a number from 0 to 255"),
                (["hold", "--ttl", "999ms", "k", "true"], "--ttl is shorter than 1s"),
                (["hold", "--stop-margin", "16s", "k", "true"], "--stop-margin is longer than half"),
                (["hold", "--kill-after", "6s", "k", "true"], "--kill-after is not shorter"),
                (["--url", "http://here", "list"], "the scheme is not redis"),
                (["--url", "redis://here:x", "list"], "the port is not a number")):
            code, out, err = self.run_it(*words)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), (words, err))
            self.assertIn(said, err)
        for text in ("", "x", "-1s", "1 s", "1e3", "nan", "inf", "5y", "400d", "0x10", "1.5.5s", "s"):
            code, _, err = self.run_it("hold", "--wait", text, "k", "true")
            self.assertEqual((code, "--wait is not a duration" in err), (2, True), text)

    def test_help_and_version(self):
        code, everything, _ = self.run_it("--help")
        self.assertEqual(code, 0)
        for verb in ("hold", "try", "inspect", "list", "release", "watch"):
            self.assertIn(f"amuxctl {verb} [OPTION...]", everything)
            for words in ([verb, "--help"], ["help", verb], [verb, "-h", "and", "--whatever"]):
                code, out, _ = self.run_it(*words)
                self.assertEqual((code, out.splitlines()[0].split(" [")[0]), (0, f"usage: amuxctl {verb}"))
        version = re.search(r"project\(amux VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(self.run_it("--version"), (0, f"amuxctl {version}\n", ""))
        with open("/dev/full", "w", encoding="utf8") as full:
            self.assertEqual(self.start("--help", stdout=full).wait(harness.LIMIT), 125)

    def test_an_option_of_the_command_is_the_commands(self):
        for words in (["k", "echo", "--json"], ["k", "--", "echo", "--json"], ["--", "k", "echo", "--json"],
                      ["--ttl=9s", "k", "--", "echo", "--json"], ["k", "--ttl", "9s", "echo", "--json"]):
            self.assertEqual(self.run_it("hold", *words), (0, "--json\n", ""), words)
        for key in ("-key", "--", "--json"):
            self.assertEqual(self.run_it("hold", "--", key, "--", "printenv", "AMUX_KEY")[1], key + "\n")
            self.assertEqual(self.run_it("hold", "--", key, "printenv", "AMUX_KEY")[1], key + "\n")
            self.assertEqual(self.run_it("inspect", "--", key)[1], key + "  free\n")
        self.assertEqual(self.run_it("hold", "--metadata=--", "k", "true")[0], 0)

    def test_a_busy_key_says_who_has_it(self):
        holder = self.acquire("k", "--metadata", "the \x1b[31mnightly job")
        code, out, err = self.run_it("try", "k", "echo", "ran")
        self.assertEqual((code, out), (121, ""))
        self.assertRegex(err, r"^amuxctl: k: busy: held by the \\x1b\[31mnightly job, its lease lasts \d+\.\d s\n$")
        self.assertEqual(self.run_it("try", "-q", "--busy-code", "0", "k", "true"), (0, "", ""))
        begun = now()
        self.assertEqual(self.run_it("hold", "--wait", "0.7s", "k", "true")[0], 121)
        self.assertGreaterEqual(now() - begun, 0.7)
        self.assertEqual(self.run_it("hold", "--wait", "0", "k", "true")[0], 121)
        self.end(holder)
        self.assertEqual(self.run_it("try", "k", "echo", "ran"), (0, "ran\n", ""))

    def test_inspect_and_list_in_json(self):
        metadata = 'quotes " and \\ and \n and ä 😀'
        holders = [self.acquire("x:1", "--metadata", metadata), self.acquire("x:2"), self.acquire("x*")]
        code, out, _ = self.run_it("inspect", "--json", "x:1")
        lease = json.loads(out)
        self.assertEqual((code, out.count("\n"), sorted(lease)),
                         (0, 1, ["fence", "key", "metadata", "remaining_ms", "token"]))
        self.assertEqual((lease["key"], lease["metadata"], len(lease["token"])), ("x:1", metadata, 32))
        self.assertTrue(lease["fence"].isdigit() and 0 < lease["remaining_ms"] <= 30000, lease)
        for prefix, keys in ((["x"], ["x*", "x:1", "x:2"]), (["x:"], ["x:1", "x:2"]), (["x*"], ["x*"]),
                             ([], ["x*", "x:1", "x:2"]), (["y"], [])):
            code, out, _ = self.run_it("list", "--json", *prefix)
            self.assertEqual((code, [json.loads(line)["key"] for line in out.splitlines()]), (0, keys))
        plain = self.run_it("list", "x:")[1].splitlines()
        self.assertRegex(plain[0], r'^x:1  token \w{32}  fence \d+  \d+\.\d s left  quotes " and \\ and \\x0a and ä 😀$')
        for holder in holders:
            self.end(holder)
        self.assertEqual(self.run_it("inspect", "--json", "x:1"), (1, "", ""))
        self.assertEqual(self.run_it("inspect", "x:1"), (1, "x:1  free\n", ""))

    def test_what_is_not_utf8_breaks_no_json(self):
        key = b"k\xff\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80\xe4\xb8\xad\x7f\x01"
        holder = self.acquire(key)
        code, out, _ = self.run_it("list", "--json")
        self.assertEqual((code, json.loads(out)["key"]), (0, "k" + "\ufffd" * 10 + "中\x7f\x01"))
        out = self.run_it("list")[1]
        self.assertTrue(out.startswith(r"k\xff\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80中\x7f\x01  token"), out)
        self.end(holder)

    def test_list_finds_a_thousand_keys(self):
        self.server.ask_all(["SET", "{amux}:lock:many:%04d" % n, "amux1:1:t:7:m", "PX", "60000"] for n in range(1500))
        code, out, _ = self.run_it("list", "--json", "many:")
        leases = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((code, [lease["key"] for lease in leases]), (0, ["many:%04d" % n for n in range(1500)]))
        self.assertEqual({lease["fence"] for lease in leases}, {"7"})
        self.server.ask_all(["DEL", "{amux}:lock:many:%04d" % n] for n in range(1500))

    def test_list_names_a_key_that_is_no_lease_and_shows_the_others(self):
        holder = self.acquire("x:2")
        self.server.ask("LPUSH", "{amux}:lock:x:1", "nothing of ours")
        code, out, err = self.run_it("list", "x:")
        self.assertEqual((code, out[:5]), (120, "x:2  "))
        self.assertIn("'x:1'", err)
        self.server.ask("DEL", "{amux}:lock:x:1")
        self.end(holder)

    def test_what_something_else_has_set_is_shown_as_no_lease(self):
        self.server.ask("SET", "{amux}:lock:k", "a stranger's")
        self.addCleanup(self.server.ask, "DEL", "{amux}:lock:k")
        shown = "k  token a stranger's  (no lease: set by something else than amux)\n"
        self.assertEqual([self.run_it("list"), self.run_it("inspect", "k")], [(0, shown, "")] * 2)
        self.assertIsNone(json.loads(self.run_it("list", "--json")[1])["fence"])
        self.assertEqual(self.run_it("try", "k", "true"), (121, "", "amuxctl: k: busy: held by something else than amux\n"))
        self.assertEqual(self.run_it("release", "k", "a stranger's")[0], 0)

    def test_release_takes_the_token_or_force(self):
        holder = self.acquire("k", "--ttl", "6s", "--metadata", "it")
        token = json.loads(self.run_it("inspect", "--json", "k")[1])["token"]
        code, _, err = self.run_it("release", "k", "0" * 32)
        self.assertEqual((code, "does not hold it" in err), (1, True))
        self.assertTrue(self.server.held("k"))
        code, out, _ = self.run_it("release", "--json", "k", token)
        self.assertEqual((code, json.loads(out)), (0, {"key": "k", "event": "released", "token": token}))
        self.assertFalse(self.server.held("k"))
        self.assertEqual(self.run_it("release", "k", token)[0], 1)
        self.assertEqual(holder.wait(harness.LIMIT), 122)  # found out by its next renewal
        holder = self.acquire("k", "--ttl", "6s", "--metadata", "it")
        code, _, err = self.run_it("release", "--force", "k")
        self.assertEqual((code, "RELEASED BY FORCE from it (token " in err), (0, True))
        self.assertEqual(holder.wait(harness.LIMIT), 122)
        self.assertEqual(self.run_it("release", "--force", "k")[0], 1)

    def test_watch_tells_of_each_change_until_it_is_interrupted(self):
        p = self.start("watch", "--json", "k")
        self.assertEqual(json.loads(p.stdout.readline())["event"], "free")
        for number in range(2):
            holder = self.acquire("k", "--metadata", f"holder {number}")
            acquired = json.loads(p.stdout.readline())
            self.end(holder)
            released = json.loads(p.stdout.readline())
            self.assertEqual((acquired["event"], acquired["metadata"]), ("acquired", f"holder {number}"))
            self.assertEqual((released["event"], released["token"]), ("released", acquired["token"]))
            self.assertRegex(released["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(harness.LIMIT), 0)

    def test_watch_ends_when_nobody_reads_and_says_once_that_it_cannot_be_written(self):
        p = self.start("watch", "k")
        self.assertTrue(p.stdout.readline())
        p.stdout.close()  # no event comes that could fail to be written
        self.assertEqual(p.wait(harness.LIMIT), 0)
        with open("/dev/full", "w", encoding="utf8") as full:
            _, err = self.start("watch", "k", stdout=full).communicate(timeout=harness.LIMIT)
            self.assertEqual(err.count(b"cannot be written"), 1)

    def test_messages_of_hold_in_json(self):
        code, _, err = self.run_it("hold", "--json", "k", "true")
        events = [json.loads(line) for line in err.splitlines()]
        self.assertEqual((code, [e["event"] for e in events]), (0, ["acquired", "released"]))
        self.assertEqual([sorted(e) for e in events], [["event", "key", "text"]] * 2)

    def test_a_server_that_is_away_is_an_error_in_time(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, never answers
            hangs = f"redis://127.0.0.1:{silent.getsockname()[1]}"
            all_words = (["inspect", "k"], ["list"], ["release", "k", "t"], ["watch", "k"], ["try", "k", "true"],
                         ["hold", "--wait", "500ms", "k", "true"])
            calls = [("redis://127.0.0.1:1", ["try", "k", "true"])]  # with the limits that it has by itself
            for url in ("redis://:hidden@127.0.0.1:1", hangs, "redis://:hidden@nowhere.invalid"):
                calls += [(url + "?connect_timeout=300&command_timeout=300", words) for words in all_words]
            begun = now()
            for p, call in [(self.start("--url", url, *words), (url, words)) for url, words in calls]:
                out, err = p.communicate(timeout=harness.LIMIT)
                self.assertEqual((p.returncode, out), (120, b""), (call, err))
                self.assertNotIn(b"hidden", err)
                self.assertLess(now() - begun, 15, call)

    def test_a_server_that_refuses_is_told_at_once(self):
        for words in (["inspect", "k"], ["list"], ["release", "k", "t"], ["watch", "k"]):
            begun = now()  # with a limit that would be longer than the test's
            code, _, err = self.run_it("--url", "redis://127.0.0.1:1?command_timeout=25000", *words)
            self.assertEqual((code, "Connection refused" in err), (120, True), err)
            self.assertLess(now() - begun, 15)

    def test_a_server_that_was_away_for_all_of_the_wait_and_is_back_is_no_busy_key(self):
        server = harness.Server()
        self.addCleanup(server.close)
        os.kill(server.process.pid, signal.SIGSTOP)
        p = self.start("--url", server.url(), "hold", "--wait", "1s", "--busy-code", "0", "k", "true")
        self.keeper_of(p.pid)
        time.sleep(2.5)
        os.kill(server.process.pid, signal.SIGCONT)
        self.assertEqual(p.wait(harness.LIMIT), 120, p.stderr.read())

    def test_a_password_is_never_shown(self):
        code, _, err = self.run_it("hold", "-v", "--url", f"redis://:hid%2Fden@127.0.0.1:{self.server.port}", "k", "true")
        self.assertEqual((code, "WRONGPASS" in err, "den" in err), (120, True, False))
        holder = self.acquire("-v", "--url", f"redis://:se%2Fcret@127.0.0.1:{self.server.port}", "k")
        for pid in (holder.pid, self.keeper_of(holder.pid)):
            shown = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            self.assertEqual((b"redis://xxx" in shown, b"cret" in shown), (True, False))
        self.end(holder)
        self.assertNotIn(b"cret", holder.stderr.read())
        code, _, err = self.run_it("list", "--url", f"redis://:hid%2Fden@127.0.0.1:{self.server.port}")
        self.assertEqual((code, "refuses AUTH" in err, "den" in err), (120, True, False))
        code, _, err = self.run_it("redis://:se%2Fcret@here", "list")
        self.assertEqual((code, "cret" in err), (2, False))

    def test_the_table_of_exit_codes_is_the_same_everywhere(self):
        shown = dict(re.findall(r"^  (\d+(?:\+N)?) +(\S.*)$", self.run_it("--help")[1].split("Exit codes:")[1], re.M))
        page = (ROOT / "docs/amuxctl.md").read_text()
        self.assertEqual(shown, dict(re.findall(r"^\| (\d+(?:\+N)?) \| (.*) \|$", page, re.M)))
        self.assertIn("122", shown)


if __name__ == "__main__":
    harness.main()
