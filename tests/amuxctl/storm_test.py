#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Without this file amuxctl is killed and stopped at moments only that somebody has thought of.

AMUX_TEST_SCALE is a factor on the rounds, AMUX_TEST_SEED the seed of one run to be seen again.
"""
import os
import random
import signal
import threading
import time

import harness
from harness import now, runs, send, wait_for

SCALE = float(os.environ.get("AMUX_TEST_SCALE", "1"))
SEED = int(os.environ.get("AMUX_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Storm(harness.Case):
    def test_twenty_processes_count_exactly(self):
        """A file is read, and written again after a while: one that came between would be seen."""
        counter = self.folder / "counter"
        counter.write_text("0\n")
        add = f"read n <{counter}; sleep 0.002; echo $((n + 1)) >{counter}"
        failures = []

        def work():
            for _ in range(rounds):
                code, _, err = self.run_it("hold", "--wait", "120s", "counter", "--", "sh", "-c", add)
                if code != 0:
                    failures.append((code, err))
        rounds = max(1, round(3 * SCALE))
        threads = [threading.Thread(target=work) for _ in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((counter.read_text(), failures), (f"{20 * rounds}\n", []))
        self.assertFalse(self.server.held("counter"))

    def test_signals_at_every_moment(self):
        """Three contend for a key; one of them, or its keeper, gets a signal at a random moment. Never are two commands
        alive; in the end none is, and the key is free: at once when nobody was killed or stopped, else after a ttl."""
        print(f"\nAMUX_TEST_SEED={SEED}", flush=True)
        chance = random.Random(SEED)
        rounds = max(1, round(20 * SCALE))
        self.done = 0
        for number in range(rounds):
            with self.subTest(seed=SEED, round=number):
                self.one_round(chance, number)
                self.assert_no_overlap()
        self.assertGreaterEqual(self.done, rounds)  # of twice as many

    def one_round(self, chance, number):
        ignore = chance.choice(["", "", "trap '' TERM INT HUP"])
        lasts = chance.uniform(0, 0.3)
        command = ["sh", "-c", f"""
            {ignore}
            exec 9>>{self.folder}/one
            flock -n 9 || echo overlap >>{self.folder}/overlap
            echo $$ >>{self.folder}/pids
            sleep {lasts:.3f} 9>&-
            :
        """]
        all_of_them = [self.start("hold", "--ttl", "2s", "--wait", "60s", "k", "--", *command) for _ in range(3)]
        victim = all_of_them[0]
        what = chance.choice(SIGNALS)
        to_keeper = what in (signal.SIGKILL, signal.SIGSTOP) and chance.random() < 0.5
        delay = chance.uniform(0, 0.4)
        self.about = f"round {number}: {what.name} to the {'keeper' if to_keeper else 'front'} after {delay:.3f} s"
        time.sleep(delay)
        hit = self.keepers(victim.pid) if to_keeper else [victim.pid]
        for pid in hit:
            if victim.poll() is None:
                send(pid, what)
        keepers = [k for p in all_of_them for k in self.keepers(p.pid)]
        if what == signal.SIGSTOP:
            time.sleep(chance.choice([0.1, 2.5]))
            again = chance.choice([signal.SIGCONT, signal.SIGKILL])
            for pid in hit:
                if runs(pid):
                    send(pid, again)
        codes = [p.wait(2 * harness.LIMIT) for p in all_of_them]
        if victim.returncode not in (-9, 122):
            self.assertFalse(self.server.held("k"), f"{self.about}: a key is left, {codes}")
        for pid in keepers:
            wait_for(lambda pid=pid: not runs(pid), f"{self.about}: the keeper has ended")
        self.wait_until_free("k")
        pids = self.folder / "pids"
        for pid in pids.read_text().split() if pids.exists() else []:
            wait_for(lambda pid=pid: not runs(int(pid)), f"{self.about}: the command has ended")
        for code in codes[1:]:
            self.assertIn(code, (0, 122), self.about)  # a machine that is busy may lose a lease
        self.done += codes[1:].count(0)
        allowed = {signal.SIGKILL: (0, -9, 122, 125), signal.SIGSTOP: (0, -9, 122, 125)}.get(what, (0, 128 + what, -what))  # before it has begun
        self.assertIn(codes[0], allowed, self.about)

    @staticmethod
    def keepers(front):
        return [pid for pid, p in harness.processes().items() if p.parent == front and p.name == "amux-keeper"]

    def test_a_server_that_is_killed_at_every_moment(self):
        """Leases in a server without a disk are gone with it; so each round has a server and one command, which ends before
        its lease would have, and amuxctl says so."""
        chance = random.Random(SEED + 1)
        for number in range(max(1, round(4 * SCALE))):
            own = harness.Server()
            try:
                name = f"worker{number}"
                p = self.start("hold", "--ttl", "2s", "--stop-margin", "900ms", "--kill-after", "300ms", "k", "--",
                               *self.worker(name, "SIGTERM"),
                               env={**self.environment(), "AMUX_URL": own.url()})
                pid = self.worker_pid(name)
                time.sleep(chance.uniform(0, 0.8))
                own.kill()
                killed = now()
                self.assertEqual(p.wait(harness.LIMIT), 122, f"seed {SEED}, round {number}")
                self.assertFalse(runs(pid))
                beat = self.folder / f"{name}.beat"
                if beat.exists():
                    self.assertLess(self.last_beat(name), killed + 2, f"seed {SEED}, round {number}")
            finally:
                own.close()


if __name__ == "__main__":
    harness.main()
