"""What a shell offers after a TAB, through click's own interface, and without anybody's code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner
from fake_packages import install

from fedbench.core.cli import complete
from fedbench.core.cli.completion import VARIABLE
from fedbench.core.cli.main import COMMANDS, cli
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import PLURAL
from fedbench.core.spec.shipped import shipped_suites
from fedbench.core.store.marker import MARKER


@pytest.fixture(autouse=True)
def known_anew():
    """A process completes once; the tests do so many times."""
    complete._registry.cache_clear()
    yield
    complete._registry.cache_clear()


def offered(*words: str, incomplete: str = "") -> list[tuple[str, str]]:
    """(type, value) of each candidate after these words."""
    made = get_completion_class("bash")
    found = made(cli, {}, "fedbench", VARIABLE).get_completions(list(words), incomplete)
    return [(item.type, item.value) for item in found]


def names(*words: str, incomplete: str = "") -> set[str]:
    return {value for _, value in offered(*words, incomplete=incomplete)}


def test_commands_with_their_help():
    assert set(COMMANDS) <= names()
    (item,) = cli.shell_complete(click.Context(cli), "doct")
    assert (item.value, item.help) == ("doctor", COMMANDS["doctor"][1])
    assert "--version" in names(incomplete="--")


@pytest.mark.parametrize("command", ["run", "validate"])
def test_suites_by_name_or_as_files(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert names(command) == {*shipped_suites(), "mine.yaml"}
    assert names(command, incomplete="papers/ifca") == {n for n in shipped_suites() if n.startswith("papers/ifca")}
    assert offered(command, incomplete="../elsewhere/a") == [("file", "../elsewhere/a")]


def test_several_suites_of_one_command():
    assert "poisoning" in names("validate", "clustered")


@pytest.mark.parametrize("command", ["show", "leaderboard", "clean"])
def test_results_folders(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert offered(command) == [("dir", "")]
    for folder in ("here", "results/there", "other"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("here", "results/there"):
        (tmp_path / folder / MARKER).write_text("{}")
    assert complete.MARKER == MARKER
    assert names(command) == {"here", "results/there"}
    assert names(command, incomplete="results/t") == {"results/there"}
    assert offered(command, incomplete="oth") == [("dir", "oth")]


def test_cells_of_the_results_folder_that_was_named(tmp_path):
    (tmp_path / "records").mkdir()
    for name in ("a--b.json", "a--c.json", "c\nd.json"):
        (tmp_path / "records" / name).write_text("{}")
    assert names("show", str(tmp_path), incomplete="a--") == {"a--b", "a--c"}
    assert names("show", str(tmp_path)) == {"a--b", "a--c"}
    assert names("show", str(tmp_path / "gone")) == set()


def test_kinds_choices_and_options():
    assert names("list") == {*PLURAL.values(), "suites"}
    assert names("run", "x", "--rerun") == {"missing", "failed", "always", "never"}
    assert "--dry-run" in names("run", "x", incomplete="--d")
    assert names("completion") == {"bash", "zsh", "fish"}


PACKAGE = """
    from pathlib import Path
    Path({seen!r}).touch()
    from fedbench.core import Component, hookimpl

    @hookimpl
    def fedbench_reports():
        yield Component("paper", "late:Paper", "a report for a paper")
"""


def test_a_strangers_report_is_offered_once_it_is_known_and_never_asked_here(site, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen = tmp_path / "seen"
    install(site, "late", PACKAGE.format(seen=str(seen)))
    assert names("leaderboard", "x", "--report") == {"board"}
    assert not seen.exists()
    Registry.discover()
    assert seen.exists()
    seen.unlink()
    complete._registry.cache_clear()
    assert names("leaderboard", "x", "--report") == {"board", "paper"}
    assert not seen.exists() and "late" not in sys.modules
    assert "paper" in {item.value for item in complete.components(None, None, "pa")}


def completed(*words: str) -> tuple[list[str], set[str]]:
    """What a shell is told, and which heavy modules that took, in a process of its own."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('HEAVY', *(m for m in ('torch', 'numpy', 'sklearn') "
        "if m in sys.modules))); from fedbench.core.cli.main import main; main()"
    )
    env = {**os.environ, VARIABLE: "bash_complete", "COMP_WORDS": " ".join(("fedbench", *words)), "COMP_CWORD": str(len(words))}
    lines = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    return lines[:-1], set(lines[-1].split()[1:])


@pytest.mark.parametrize(("words", "one"), [
    (("lis",), "plain,list"), (("run", "clust"), "plain,clustered"), (("leaderboard", "x", "--report", "b"), "plain,board"),
])  # fmt: skip
def test_a_tab_takes_nothing_heavy(words, one):
    lines, heavy = completed(*words)
    assert one in lines and heavy == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell):
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0 and f"{VARIABLE}={shell}_complete" in done.stdout and "fedbench" in done.stdout


def test_bash_takes_the_script_and_completes_with_it(tmp_path):
    """The script in a real shell: what its function puts into COMPREPLY."""
    (tmp_path / "script").write_text(CliRunner().invoke(cli, ["completion", "bash"]).stdout)
    lines = (
        f"source {tmp_path / 'script'}", "complete -p fedbench", "COMP_WORDS=(fedbench validate part); COMP_CWORD=2",
        "_fedbench_completion fedbench", 'printf "%s\\n" "${COMPREPLY[@]}"',
    )  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _fedbench_completion fedbench", "partial_defense", "partial_defense_cifar10",
        "partial_defense_location30",
    ]  # fmt: skip
