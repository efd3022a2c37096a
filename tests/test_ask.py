"""Asking other people's code in a process of its own, remembering what it announced, and the process that asks staying clean."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path

import pytest
from fake_packages import ANNOUNCE, install
from running import HANG_S, suite, wait_for

from fedbench.core.apart.channel import at_work, moved, say
from fedbench.core.apart.patience import Patience
from fedbench.core.contract.errors import UserError
from fedbench.core.registry import ask as ask_module
from fedbench.core.registry.ask import SECONDS, Defect, Ended, ask, ask_each, patience
from fedbench.core.registry.components import Registry
from fedbench.core.registry.remembered import _notes, cache_file
from fedbench.core.spec.suite import Setting

SOON = Patience(cpu_s=1.0, idle_s=1.0)


class View(StrEnum):
    """A text of somebody's own class."""

    SERVER = "server"


class Own:
    """An object of somebody's class."""


def raising(error: BaseException):
    raise error


def spin(seconds: float) -> None:
    """Use that much CPU."""
    end = time.process_time() + seconds
    while True:
        if time.process_time() > end:
            return


@pytest.mark.parametrize("value", [None, 3, "é", [1.5, {"a": (1, {2})}], Path("/x"), {"path": Path("y")}])
def test_plain_values_come_back_as_they_were(value):
    assert ask(lambda: value) == value


def test_texts_of_somebodys_class_become_plain_and_its_objects_are_refused():
    found = ask(lambda: [View.SERVER])
    assert found == ["server"] and type(found[0]) is str
    with pytest.raises(UserError, match=r"'test_ask\.Own' came back from a plugin where plain data was expected"):
        ask(Own)
    with pytest.raises(UserError, match=r"'posix\.system' came back from a plugin"):
        ask(lambda: os.system)


@pytest.mark.parametrize("name", ["subprocess.Popen", "metadata.email.message.Message"])
def test_a_forged_answer_makes_nothing_that_a_module_of_ours_has_imported(name, monkeypatch):
    """Whoever speaks for the process apart writes the bytes as he likes: a class is called with what he says."""
    def forged(value):
        words = [f"\x8c{chr(len(word))}{word}" for word in ("fedbench.core.execution.provenance", name, "true")]
        return base64.b64encode(f"\x80\x04{words[0]}{words[1]}\x93]({words[2]}e\x85R.".encode("latin1")).decode()

    monkeypatch.setattr(ask_module, "_packed", forged)
    with pytest.raises(UserError, match=rf"'fedbench\.core\.execution\.provenance\.{re.escape(name)}' came back from a plugin"):
        ask(lambda: "nothing")


def test_a_setting_of_ours_comes_back_whole():
    federation = {"clients": 4, "rounds": 2, "batch_size": 5, "optimizer": {"lr": 0.1}}
    setting = Setting.model_validate({"name": "a", "dataset": "digits", "federation": federation})
    assert ask(lambda: setting) == setting


@pytest.mark.parametrize(("question", "error", "says"), [
    (lambda: raising(UserError("one", "two")), UserError, "one\ntwo"),
    (lambda: raising(FileNotFoundError(2, "No such file", "/x")), FileNotFoundError, r"No such file: '/x'"),
    (lambda: 1 / 0, Defect, "ZeroDivisionError: division by zero"),
    (lambda: os._exit(0), Ended, "somebody's code, or fedbench's own: it ended the process with status 0"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), Ended, "it was killed by SIGKILL"),
])  # fmt: skip
def test_what_is_raised_instead(question, error, says):
    with pytest.raises(error, match=says):
        ask(question)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, ValueError])
def test_whatever_leaves_somebodys_work_names_him(error):
    def question() -> None:
        with at_work("outer"), at_work("attack 'x' (pack 1.0)"):
            raise error

    with pytest.raises(UserError, match=r"^attack 'x' \(pack 1\.0\): "):
        ask(question)


def test_an_item_that_ends_the_process_costs_itself_alone():
    def question(i: int) -> int:
        with at_work(f"item {i}"):
            return os._exit(0) if i in (1, 2) else i * i

    answers = list(ask_each(range(5), question))
    assert [a.value for a in answers] == [0, None, None, 9, 16]
    assert [str(a.error) for a in answers[1:3]] == [f"item {i}: it ended the process with status 0" for i in (1, 2)]


def test_a_copy_of_the_process_says_nothing():
    def question(i: int) -> int:
        if i == 1:
            os.fork()
        return i

    assert [a.get() for a in ask_each(range(4), question)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_patience_is_that_of_who_is_at_work_and_begins_anew_with_the_next():
    def question() -> None:
        for i in range(4):
            with at_work(f"quick {i}", SOON):
                spin(0.4)
        with at_work("patient", Patience()):
            time.sleep(1.6)
        with at_work("outer", SOON), at_work("inner"):
            time.sleep(3600)

    with pytest.raises(Ended) as caught:
        ask(question)
    assert str(caught.value) == f"inner: nothing moved for 1 s; {SECONDS} sets how long it may take"
    assert caught.value.timed_out


def test_who_moves_is_not_hung_and_what_is_said_is_shown(capsys):
    def question() -> int:
        with at_work("slow", SOON):
            for _ in range(8):
                time.sleep(0.3)
                moved()
            say("half way")
            return 7

    assert ask(question) == 7
    assert capsys.readouterr().err == "half way\n"


def test_a_download_that_writes_moves(tmp_path):
    def question() -> int:
        with at_work("slow", SOON), open(tmp_path / "part", "wb", buffering=0) as part:
            return sum(part.write(bytes(200_000)) for _ in range(8) if time.sleep(0.3) is None)

    assert ask(question) == 1_600_000


def test_what_is_printed_is_shown_line_by_line_without_what_a_terminal_would_obey(capsys):
    def question(_: int) -> None:
        print("\x1b[31mred\x1b[0m \u202e end")
        os.write(1, b"below \xff\rPython")

    list(ask_each([0], question))
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == "\\u001b[31mred\\u001b[0m \\u202e end\nbelow \\xff\nPython\n"
    list(ask_each([0], question, quiet=True))
    assert capsys.readouterr().err == ""


def test_what_it_leaves_running_ends_with_it(tmp_path):
    def question() -> int:
        return subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL).pid

    pid = ask(question)
    wait_for(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf", "1e400", "\x1b[31m"])
def test_patience_that_is_no_number_of_seconds_is_a_message(monkeypatch, text):
    monkeypatch.setenv(SECONDS, text)
    with pytest.raises(UserError, match=f"^{SECONDS}=.*: expected a number of seconds above 0; the default is 60$") as caught:
        patience()
    assert str(caught.value).isprintable()


# --- the process that the user started --------------------------------------------------------------------------------

SEEN = """
import os
from fedbench.core import Component, Defense, Report, hookimpl

class Shield(Defense):
    pass

class Page(Report):
    def write(self, results, plots=True):
        path = results / "leaderboard" / "page.txt"
        path.write_text("a page")
        return path

@hookimpl
def fedbench_defenses():
    yield Component("shield", "seen_plugin:Shield", "does nothing")

@hookimpl
def fedbench_reports():
    yield Component("page", "seen_plugin:Page", "a page")
"""


@pytest.mark.slow
def test_the_process_that_the_user_started_never_imports_a_plugin(site, tmp_path):
    install(site, "seen_plugin", SEEN)
    path, results = suite(tmp_path, defenses=["shield"]), tmp_path / "r"
    calls = [
        ["list", "--params"], ["plugins"], ["validate", str(path)],
        ["run", str(path), "--results", str(results), "--no-plots"], ["show", str(results)],
        ["leaderboard", str(results), "--report", "page", "--report", "board", "--no-plots"],
    ]  # fmt: skip
    code = (
        "import sys\nfrom fedbench.core.cli.main import main\n"
        f"for call in {calls!r}:\n"
        "    try:\n        status = main(call)\n    except SystemExit as e:\n        status = e.code\n"
        "    print('AFTER', call[0], status, 'seen_plugin' in sys.modules, flush=True)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=HANG_S)
    after = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("AFTER")]
    assert after == [[call[0], "0", "False"] for call in calls], done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupt_ends_the_command_and_whatever_the_plugin_does(site, tmp_path, how, status):
    pids = tmp_path / "pids"
    install(site, "dozes", f"""
        import os, time
        open({str(pids)!r}, "w").write(f"{{os.getpid()}}\\n")
        time.sleep(3600)
    """)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbench.core.cli.main", "list"], env={**os.environ, "PYTHONPATH": str(site)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"), process)
    process.send_signal(how)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out, err.strip()) == (status, "", "interrupted" if status == 130 else "")
    wait_for(lambda: not _alive(int(pids.read_text())))


# --- what is remembered -----------------------------------------------------------------------------------------------


@pytest.fixture
def count(site, tmp_path, monkeypatch):
    """A package that counts its imports, in a cache folder of its own; a function that gives the number."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("fedbench.core.registry.remembered._here", {})
    log = tmp_path / "imports"
    log.touch()
    install(site, "counted", f"open({str(log)!r}, 'a').write('x')\n" + ANNOUNCE.format(name="shield", target="a:B"))
    Registry.discover()
    return lambda: len(log.read_text())


def anew(monkeypatch) -> Registry:
    """As the next command finds it."""
    monkeypatch.setattr("fedbench.core.registry.remembered._here", {})
    return Registry.discover()


def test_what_was_announced_is_remembered_until_a_file_changes_and_plugins_asks_again(site, count, monkeypatch):
    anew(monkeypatch)
    n = count()
    assert anew(monkeypatch).get("defense", "shield").distribution == "counted" and count() == n
    Registry.discover(fresh=True)
    assert count() == n + 1
    (site / "counted.py").write_text((site / "counted.py").read_text().replace("'shield'", "'sword'"))
    assert anew(monkeypatch).get("defense", "sword") and count() == n + 2


def test_what_is_installed_beside_it_makes_it_be_asked_again(site, count, monkeypatch):
    anew(monkeypatch)
    n = count()
    install(site, "another", ANNOUNCE.format(name="sword", target="a:B"))
    assert anew(monkeypatch).get("defense", "sword") and count() == n + 1


@pytest.mark.parametrize("spoilt", [
    "", "{", "[]", '{"schema": 2}', '{"schema": 9, "notes": {}}', '{"schema": 2, "notes": []}', "[" * 100_000,
    "cposix\nsystem\n(S'touch executed'\ntR.",
])  # fmt: skip
def test_a_damaged_memory_costs_asking_again(count, monkeypatch, spoilt):
    cache_file().write_text(spoilt)
    n = count()
    assert anew(monkeypatch).get("defense", "shield") and count() == n + 1


@pytest.mark.parametrize("said", [
    None, [], [7], [{}], [{"components": [], "reason": 3, "stopped": False}],
    [{"components": [["x", {}]], "reason": "", "stopped": False}],
    [{"components": [["defense", {"name": "a"}]], "reason": "", "stopped": False}],
])  # fmt: skip
def test_an_entry_of_another_form_costs_asking_again(count, monkeypatch, said):
    anew(monkeypatch)
    _notes().add({where: [state, said] for where, (state, _) in _notes().read().items()})
    n = count()
    assert anew(monkeypatch).get("defense", "shield") and count() == n + 1


def test_a_folder_that_cannot_be_written_costs_asking_again(count, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    n = count()
    for i in (1, 2):
        assert anew(monkeypatch).get("defense", "shield") and count() == n + i


def test_a_hang_is_waited_for_once_and_a_quick_failure_is_asked_again(site, count, monkeypatch, tmp_path):
    log = tmp_path / "tries"
    monkeypatch.setenv(SECONDS, "1")
    install(site, "dozes", f"import time\nopen({str(log)!r}, 'a').write('d')\ntime.sleep(3600)")
    install(site, "lacks", f"open({str(log)!r}, 'a').write('l')\nimport no_such_module_here")
    anew(monkeypatch)
    before = log.read_text()
    for _ in range(2):
        assert sorted(p.distribution for p in anew(monkeypatch).broken) == ["dozes", "lacks"]
    assert log.read_text().removeprefix(before) == "ll"
