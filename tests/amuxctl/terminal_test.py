#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Without this file nothing shows that a command under amuxctl has its terminal: reading, Ctrl-C, Ctrl-Z, and none at all."""
import os
import pty
import select
import signal
import termios
import time

import harness
from harness import now, runs, wait_for


class Session:
    """A terminal, and a process that does for one job in it what a shell does: it leads the session, gives the job the
    foreground, and tells how the job fares. `fg` and `bg` let it go on."""

    def __init__(self, words, environment):
        self.orders, orders = os.pipe()
        told, self.tell = os.pipe()
        self.out = b""
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            try:
                os.close(self.orders)
                os.close(self.tell)
                self.lead(words, environment, told, orders)
            finally:
                os._exit(99)
        os.close(orders)
        os.close(told)
        self.reports = os.fdopen(self.orders, "rb", buffering=0)

    @staticmethod
    def lead(words, environment, orders, reports):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.close(orders)
            os.close(reports)
            os.execvpe(words[0], words, environment)
        while True:
            _, status = os.waitpid(job, os.WUNTRACED)
            os.tcsetpgrp(0, os.getpid())
            if os.WIFSTOPPED(status):
                os.write(reports, b"stopped %d\n" % os.WSTOPSIG(status))
            elif os.WIFSIGNALED(status):
                os.write(reports, b"killed %d\n" % os.WTERMSIG(status))
            else:
                os.write(reports, b"exited %d\n" % os.WEXITSTATUS(status))
            if not os.WIFSTOPPED(status):
                os._exit(0)
            if os.read(orders, 2) == b"fg":
                os.tcsetpgrp(0, job)
            os.kill(-job, signal.SIGCONT)

    def type(self, text):
        os.write(self.screen, text)

    def expect(self, text):
        end = now() + harness.LIMIT
        while text not in self.out:
            if not select.select([self.screen], [], [], max(0, end - now()))[0]:
                raise AssertionError(f"{text} does not come: {self.out}")
            try:
                self.out += os.read(self.screen, 4096)
            except OSError:
                raise AssertionError(f"it has ended without {text}: {self.out}")

    def report(self):
        if not select.select([self.reports], [], [], harness.LIMIT)[0]:
            raise AssertionError(f"the job neither stops nor ends: {self.out}")
        return self.reports.readline().decode().strip()

    def order(self, text):
        os.write(self.tell, text)

    def close(self):
        self.reports.close()
        os.close(self.tell)
        os.close(self.screen)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):  # ended with the test
            pass


class Leader(Session):
    """The job leads the session itself, as the shell of a login does: nobody is there who could continue it."""

    @staticmethod
    def lead(words, environment, orders, reports):
        os.execvpe(words[0], words, environment)


class Terminal(harness.Case):
    def session(self, *words):
        s = Session([harness.AMUXCTL, *words], self.environment())
        self.addCleanup(s.close)
        return s

    def test_the_command_reads_from_the_terminal(self):
        s = self.session("hold", "k", "--", "sh", "-c", "echo ready; read line; echo got $line; exit 4")
        s.expect(b"ready")
        s.type(b"words\n")
        s.expect(b"got words")
        self.assertEqual(s.report(), "exited 4")
        self.assertFalse(self.server.held("k"))

    def test_the_command_is_in_the_foreground_from_the_beginning(self):
        s = self.session("hold", "k", "--", "cat", "/proc/self/stat")
        self.assertEqual(s.report(), "exited 0")
        s.expect(b"\n")
        fields = s.out.decode().rsplit(")", 1)[1].split()
        self.assertEqual(fields[2], fields[5])  # its group, and the one in the foreground

    def until_it_sleeps(self, s):
        """A shell that has just spoken may be about to start a process: a signal that meets it there is its own affair."""
        s.expect(b"ready")
        wait_for(lambda: any(p.name == "sleep" and p.session == s.pid and p.state == "S"
                             for p in harness.processes().values()), "the command sleeps")

    def test_ctrl_c_ends_the_command_and_then_amuxctl_in_the_same_way(self):
        s = self.session("hold", "--ttl", "600s", "k", "--", "sh", "-c", "echo ready; sleep 600")
        self.until_it_sleeps(s)
        s.type(b"\x03")
        self.assertEqual(s.report(), "killed 2")
        self.assertFalse(self.server.held("k"))

    def test_ctrl_c_while_it_waits(self):
        self.server.ask("SET", "{amux}:lock:taken", "amux1:1:t:7:somebody", "PX", "600000")
        s = self.session("hold", "taken", "--", "true")
        def fronts():
            return [pid for pid, p in harness.processes().items() if p.parent == s.pid and p.name == "amuxctl"]
        self.keeper_of(wait_for(fronts, "it is started")[0])
        time.sleep(0.2)
        s.type(b"\x03")
        self.assertEqual(s.report(), "exited 130")

    def test_a_command_that_takes_ctrl_c_itself_goes_on(self):
        s = self.session("hold", "k", "--", "sh", "-c",
                         "trap 'echo caught' INT; echo ready; read line; read line; echo got $line")
        s.expect(b"ready")
        s.type(b"\x03")
        s.expect(b"caught")
        s.type(b"one\ntwo\n")
        s.expect(b"got")
        self.assertEqual(s.report(), "exited 0")

    def test_ctrl_z_stops_amuxctl_too_and_the_lease_is_kept(self):
        s = self.session("hold", "--ttl", "2s", "k", "--", "sh", "-c",
                         "echo $$ ready; while read line; do echo got $line; done; exit 6")
        s.expect(b"ready")
        pid = int(s.out.split()[0])
        for how in (b"fg", b"fg"):
            s.type(b"\x1a")
            self.assertEqual(s.report(), f"stopped {signal.SIGTSTP.value}")
            self.assertEqual(harness.processes()[pid].state, "T")
            time.sleep(2.5)
            self.assertTrue(self.server.held("k"))
            s.order(how)
            s.type(b"again\n")
            s.expect(b"got again")
            s.out = b""
        s.type(b"\x04")
        self.assertEqual(s.report(), "exited 6")

    def test_a_job_in_the_background_is_stopped_when_it_reads_and_goes_on_in_the_foreground(self):
        s = self.session("hold", "k", "--", "sh", "-c", "echo ready; sleep 1; read line; echo got $line")
        self.until_it_sleeps(s)
        s.type(b"\x1a")
        self.assertEqual(s.report(), f"stopped {signal.SIGTSTP.value}")
        s.order(b"bg")
        self.assertEqual(s.report(), f"stopped {signal.SIGTTIN.value}")  # for it has read
        s.order(b"fg")
        s.type(b"words\n")
        s.expect(b"got words")
        self.assertEqual(s.report(), "exited 0")

    def test_a_stopped_job_whose_lease_is_lost_is_ended(self):
        s = self.session("hold", "--ttl", "2s", "k", "--", "sh", "-c", "echo $$ ready; read line")
        s.expect(b"ready")
        pid = int(s.out.split()[0])
        s.type(b"\x1a")
        s.report()
        self.server.ask("DEL", "{amux}:lock:k")
        wait_for(lambda: not runs(pid), "the command has ended")
        s.order(b"fg")
        self.assertEqual(s.report(), "exited 122")

    def test_a_shell_that_suspends_itself_gives_the_terminal_back(self):
        s = self.session("hold", "k", "--", "sh", "-c", "kill -STOP $$; echo resumed; read line; echo got $line")
        self.assertEqual(s.report(), f"stopped {signal.SIGTSTP.value}")
        self.assertTrue(self.server.held("k"))
        s.order(b"fg")
        s.expect(b"resumed")
        s.type(b"words\n")
        s.expect(b"got words")
        self.assertEqual(s.report(), "exited 0")

    def test_an_amuxctl_that_has_ended_by_ctrl_c_leaves_no_keeper(self):
        """A hold around it would say that something was left running."""
        s = self.session("hold", "k", "--", "sh", "-c", "echo ready; sleep 600")
        self.until_it_sleeps(s)
        s.type(b"\x03")
        self.assertEqual(s.report(), "killed 2")
        self.assertEqual([p for p in harness.processes().values() if p.parent == os.getpid() and p.name == "amux-keeper"], [])

    def test_a_command_that_is_killed_leaves_the_terminal_as_it_was(self):
        s = self.session("hold", "--ttl", "4s", "k", "--", "sh", "-c", "stty raw -echo; echo ready; trap '' TERM; "
                         "while :; do sleep 0.1; done")
        before = termios.tcgetattr(s.screen)[3]
        s.expect(b"ready")
        self.assertNotEqual(termios.tcgetattr(s.screen)[3], before)
        self.server.ask("DEL", "{amux}:lock:k")
        self.assertEqual(s.report(), "exited 122")
        self.assertEqual(termios.tcgetattr(s.screen)[3], before)

    def test_a_shell_that_is_killed_behind_an_editor_leaves_the_terminal_to_who_called(self):
        editor = f"trap '' TERM; stty raw -echo; echo ready; until [ -e {self.folder}/done ]; do sleep 0.1; done"
        (self.folder / "editor").write_text(editor)
        s = self.shell(f'$0 hold --ttl 1s k -- sh -c "trap \'\' TERM; set -m; sh {self.folder}/editor; :"; '
                       'echo ended $?; read words; echo got $words')
        before = termios.tcgetattr(s.screen)[3]
        s.expect(b"ready")
        self.server.ask("DEL", "{amux}:lock:k")
        s.expect(b"ended 122")
        self.assertEqual(termios.tcgetattr(s.screen)[3], before)
        s.type(b"words\n")
        self.assertEqual(s.report(), "exited 0")
        s.expect(b"got words")

    def test_a_job_from_the_background_finds_the_mode_that_it_had_in_front(self):
        """It was begun behind an editor."""
        begun, killed = self.folder / "begun", "echo ready; read words </dev/tty; kill -9 \\$\\$"
        s = self.shell(f'set -m; stty raw -echo; $0 hold k -- sh -c ">{begun}; {killed}" & '
                       f'until [ -e {begun} ]; do sleep 0.02; done; stty -raw echo; fg; stty -a; exit 0')
        s.expect(b"ready")
        s.type(b"words\n")
        self.assertEqual(s.report(), "exited 0")
        s.expect(b" icanon")

    def shell(self, script, kind=Session):
        s = kind(["sh", "-c", script, harness.AMUXCTL], self.environment())
        self.addCleanup(s.close)
        return s

    def test_a_command_that_bash_substitutes_may_ask_for_a_password(self):
        """In x=$(...) it ignores what stops a job. Of a login shell nobody is the parent in the session."""
        for number, kind in enumerate((Session, Leader)):
            s = self.shell(f'trap "" TSTP TTIN TTOU; x=$($0 hold k{number} -- '
                           'sh -c "read words </dev/tty; echo got \\$words"); echo "it $x"', kind)
            s.type(b"words\n")
            s.expect(b"it got words")

    def test_who_reads_what_the_command_writes_has_the_terminal(self):
        s = self.shell('$0 hold k -- sh -c "echo ready; exec sleep 600" | '
                       '{ read line; echo $line; read words </dev/tty; echo got $words; cat; }')
        s.expect(b"ready")
        s.type(b"words\n")
        s.expect(b"got words")
        s.type(b"\x1a")
        self.assertEqual(s.report(), f"stopped {signal.SIGTSTP.value}")
        s.order(b"fg")
        wait_for(lambda: os.tcgetpgrp(s.screen) != s.pid, "the job is in the foreground")
        s.type(b"\x03")
        self.assertEqual(s.report(), "killed 2")
        self.wait_until_free("k")

    def test_a_command_in_a_pipeline_has_the_terminal_as_soon_as_it_reads(self):
        s = self.shell('echo text | $0 hold k -- sh -c "read words </dev/tty; echo got \\$words; cat" | cat')
        s.type(b"words\n")
        s.expect(b"got words")
        s.expect(b"text")
        self.assertEqual(s.report(), "exited 0")

    def test_a_job_of_a_script_leaves_it_the_terminal(self):
        s = self.shell('$0 hold k -- sh -c "echo ready >&2; exec sleep 600" & read words; echo got $words; kill $!; wait')
        s.expect(b"ready")
        s.type(b"words\n")
        s.expect(b"got words")
        self.assertEqual(s.report(), "exited 0")

    def test_ctrl_c_ends_amuxctl_in_the_same_way_without_the_terminal_too(self):
        s = self.shell('exec $0 hold k -- sh -c "echo ready; sleep 600" </dev/null')
        self.until_it_sleeps(s)
        s.type(b"\x03")
        self.assertEqual(s.report(), "killed 2")
        self.assertFalse(self.server.held("k"))

    def test_a_command_that_stops_itself_stops_amuxctl_and_nobody_else(self):
        s = self.shell('$0 hold k -- sh -c "kill -TSTP \\$\\$; echo resumed" & '
                       'until grep -q "^State:.T" /proc/$!/status; do sleep 0.02; done; '
                       'echo script goes on; kill -CONT $!; wait $!; exit $(($? + 5))')
        s.expect(b"script goes on")
        s.expect(b"resumed")
        self.assertEqual(s.report(), "exited 5")

    IN_FRONT = r"[ \$(cut -d' ' -f8 /proc/self/stat) = {shell} ]"  # nobody else has the terminal any more

    def test_who_reads_where_no_shell_can_continue_it_is_refused(self):
        """Its job has ended, and left it behind: the kernel does not stop it then, its reading fails."""
        left_behind = fr"[ \$(cut -d' ' -f4 /proc/\$\$/stat) = {os.getpid()} ] && " + self.IN_FRONT.format(shell="$$")
        s = self.shell(f'set -m; (sh -c "until {left_behind}; do sleep 0.02; done; exec \\"\\$@\\"" - '
                       '$0 hold k -- sh -c "read x </dev/tty || echo refused" &); exec sleep 600')
        s.expect(b"refused")
        self.wait_until_free("k")

    def test_who_reads_when_no_shell_can_continue_it_any_more_is_hung_up(self):
        wait = f"until [ -e {self.folder}/go ]; do sleep 0.02; done"
        in_front = self.IN_FRONT.replace("\\", "").format(shell="$1")
        read = f"until [ -e {self.folder}/go ] && {in_front}; do sleep 0.02; done; read x </dev/tty"
        for command, ends in ((f"trap 'echo hung up; exit' HUP; echo ready; {read}", True),
                              (f"trap '' HUP; echo ready; {read}", False)):
            (self.folder / "script").write_text(command)
            s = self.shell(f'set -m; ($0 hold k{ends} -- sh {self.folder}/script $$ & {wait}); exec sleep 600')
            s.expect(b"ready")
            (self.folder / "go").touch()
            if ends:
                s.expect(b"hung up")
                self.wait_until_free("kTrue")
                (self.folder / "go").unlink()
        def turns():
            readers = [pid for pid, p in harness.processes().items()
                       if (p.session, p.name, p.state) == (s.pid, "sh", "T")]
            with open(f"/proc/{(readers or ['self'])[0]}/status") as status:
                return [line for line in status if line.startswith(("State:", "voluntary"))]
        def is_quiet():
            before = turns()
            time.sleep(0.1)
            return "T (stopped)" in before[0] and turns() == before
        wait_for(is_quiet, "it is stopped, and not continued again and again")

    def test_an_editor_in_front_of_a_job_that_is_killed_keeps_its_terminal(self):
        """Of the job of a script, of a part of a pipeline, and of a job in the background that was in front before."""
        editor = ("until [ -e {begun} ]; do sleep 0.02; done; stty raw -echo; "
                  "until [ -e {done} ]; do sleep 0.02; done; stty -a; exit 0")
        killed = (harness.AMUXCTL + ' hold k{n} -- sh -c "{first}>{begun}; until stty -F /dev/tty -a | grep -q -e -icanon; do '
                  'sleep 0.02; done; kill -9 \\$\\$"')
        for number, how in enumerate(("({killed} >/dev/null; >{done}) & {editor}",
                                      "({killed} | cat; >{done}) & {editor}",
                                      "set -m; sh {job}; bg; {editor}")):
            parts = {"done": self.folder / f"done{number}", "begun": self.folder / f"begun{number}", "n": number,
                     "job": self.folder / "job", "first": "kill -TSTP \\$\\$; " if number == 2 else ""}
            parts["job"].write_text((killed + "; >{done}").format(**parts))
            s = self.shell(how.format(killed=killed.format(**parts), editor=editor.format(**parts), **parts))
            self.assertEqual(s.report(), "exited 0", how)
            s.expect(b"-icanon")

    def test_a_terminal_that_takes_nothing_does_not_keep_the_key(self):
        s = self.shell(f'yes & exec $0 hold -v --ttl 600s k -- sh -c "until [ -e {self.folder}/go ]; do sleep 0.02; '
                       'done; kill -9 \\$\\$"')
        self.assertTrue(select.select([s.screen], [], [], harness.LIMIT)[0])
        def is_blocked():
            return [pid for pid, p in harness.processes().items() if p.name == "yes" and p.session == s.pid and
                    p.state == "S"]
        wait_for(is_blocked, "it takes no more")
        wait_for(lambda: self.server.held("k"), "it is held")
        (self.folder / "go").touch()
        self.wait_until_free("k")
        self.assertEqual(s.report(), "exited 137")

    def test_without_a_terminal(self):
        p = self.start("hold", "k", "--", *self.worker(), start_new_session=True)
        pid = self.worker_pid()
        os.kill(pid, signal.SIGSTOP)  # whoever stops it alone also lets it go on
        time.sleep(0.3)
        self.assertEqual(harness.processes()[pid].state, "T")
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGTERM)  # and a stopped one hears that it is to end
        self.assertEqual(p.wait(harness.LIMIT), 143)

    def test_a_terminal_that_goes_away_ends_the_command(self):
        s = self.session("hold", "--ttl", "600s", "k", "--", "sh", "-c", "echo $$ ready; sleep 600")
        s.expect(b"ready")
        pid = int(s.out.split()[0])
        os.kill(s.pid, signal.SIGKILL)  # the leader of the session: the kernel hangs up
        wait_for(lambda: not runs(pid), "the command has ended")
        self.wait_until_free("k")


if __name__ == "__main__":
    harness.main()
