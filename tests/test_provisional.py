"""Boards of the finished seeds while a run goes on, and `--seeds N`."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from boards import Folder
from fake_packages import install
from rich.console import Console
from running import plan_once, start, suite, wait_for

from fedbench.core.cli import provisional
from fedbench.core.cli.leaderboard import reports_named
from fedbench.core.cli.progress import Display
from fedbench.core.cli.provisional import ProvisionalBoards, unfinished
from fedbench.core.cli.run import plan_part
from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import Answer
from fedbench.core.store.results import Provisional, Results, write_marker
from fedbench.leaderboard.board import MarkdownBoard
from fedbench.leaderboard.submissions.transfer import merge

SEEDS = (0, 1, 2)
LEAKS = {"none": 1.5, "mixup": 0.5}
MARK = "(provisional: {} of 3 seeds of the plan)"


def folder_of(path, seeds=SEEDS) -> Results:
    """Synthetic records of these seeds."""
    root = Folder(path, LEAKS).fill(seeds).root
    write_marker(root, {"suite": "demo", "cells": []})
    return Results(root)


@pytest.fixture
def store(tmp_path) -> Results:
    return folder_of(tmp_path / "r")


def run_of(seed: int) -> SimpleNamespace:
    return SimpleNamespace(seed=seed, run_key=f"run of {seed}")


@contextmanager
def running(store: Results):
    """(callbacks, output) of a command that computes two runs of every seed."""
    output = io.StringIO()
    display = Display(Console(file=output, width=200), [])
    jobs = [run_of(seed) for seed in SEEDS for _ in range(2)]
    report = reports_named()["board"]
    boards = ProvisionalBoards(store, report, SEEDS, set(SEEDS), jobs)
    with display, boards:
        yield boards.watching(display, display.watcher()), output


def end_runs(watcher, *seeds: int) -> None:
    for seed in seeds:
        watcher.finished(run_of(seed))
        watcher.tick()


def wait_for_board(watcher, output, n: int) -> None:
    """Look until so many seeds are on a printed board."""

    def printed() -> bool:
        watcher.tick()
        return MARK.format(n) in output.getvalue() and output.getvalue().endswith("board.md\n")

    wait_for(printed)


def test_a_seed_is_on_the_board_when_all_its_runs_have_ended_in_any_order(store):
    with running(store) as (watcher, output):
        end_runs(watcher, 1, 0)
        assert store.provisional() is None
        end_runs(watcher, 1)
        wait_for_board(watcher, output, 1)
        assert store.provisional().seeds == [1]
        end_runs(watcher, 0, 2)
        wait_for_board(watcher, output, 2)
        before = output.getvalue()
        end_runs(watcher, 2)  # the last seed: the final board follows
        assert store.provisional() is None
        assert output.getvalue() == before
    assert re.findall(r"\d of \d", before) == ["1 of 3", "2 of 3"]


def test_a_provisional_page_is_that_of_the_finished_seeds_with_a_mark(store, tmp_path):
    with running(store) as (watcher, output):
        end_runs(watcher, 0, 0)
        wait_for_board(watcher, output, 1)
        page = (store.root / "leaderboard" / "board.md").read_text()
    alone = MarkdownBoard().write(folder_of(tmp_path / "alone", (0,)).root, plots=False)
    title, mark, rest = page.split("\n\n", 2)
    assert mark.startswith("**Provisional: 1 of 3 seeds of the plan.**")
    assert f"{title}\n\n{rest}" == alone.read_text()


def test_the_final_page_has_no_mark_and_an_interrupted_run_keeps_it(store):
    with pytest.raises(KeyboardInterrupt), running(store) as (watcher, _):
        end_runs(watcher, 0, 0)
        raise KeyboardInterrupt
    page = MarkdownBoard().write(store.root, plots=False)
    assert "Provisional: 1 of 3 seeds" in page.read_text()
    with running(store):
        pass  # every run was attempted
    assert "Provisional" not in MarkdownBoard().write(store.root, plots=False).read_text()


def test_quiet_keeps_the_mark_and_makes_no_board(store, monkeypatch):
    monkeypatch.setattr(provisional, "quiet", lambda: True)
    with running(store) as (watcher, output):
        end_runs(watcher, 0, 0)
        assert store.provisional().seeds == [0]
    assert output.getvalue() == ""
    assert not (store.root / "leaderboard").exists()


def test_a_board_that_fails_is_a_note_and_the_run_goes_on(store):
    next(store.records.glob("*--s0--*.json")).write_text("{")
    with running(store) as (watcher, output):
        end_runs(watcher, 0, 0)
        wait_for(lambda: watcher.tick() or "note: no provisional board: " in output.getvalue())


def test_long_boards_are_printed_up_to_whole_tables(capsys):
    rows = [[str(i)] for i in range(90)]
    headings = [f"table {i // 30}" for i in range(90)]
    provisional._show(
        Answer(["board.md", {"headers": ["row"], "rows": rows, "headings": headings}])
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "table 0"
    assert lines[-3:] == ["29", "more tables, in the file: 2", "board: board.md"]


# -- which seeds ---------------------------------------------------------------------------------


def test_seeds_takes_the_first_of_the_suite_and_adds_to_no_key(tmp_path):
    plan_once()
    path = suite(tmp_path, defenses=["none", "mixup"], seeds=[5, 3, 4])
    plan, first = plan_part(str(path), (), (), tmp_path, "cpu", seeds=2)
    assert {job.seed for job in first.jobs} == {5, 3}
    assert plan.stored.only == ("seed=3", "seed=5")
    keys = {cell.key for job in plan.jobs for cell in job.cells if job.seed != 4}
    assert {cell.key for job in first.jobs for cell in job.cells} == keys
    states = [SimpleNamespace(stem=cell.stem) for job in first.jobs for cell in job.cells]
    store = Results.create(tmp_path / "r", "tiny")
    assert unfinished(plan, first, states, store) == {4}
    assert unfinished(plan, first, states[1:], store) == {4, 5}
    with pytest.raises(UserError, match="--seeds 4: the suite has 3 seeds: 5, 3, 4"):
        plan.first_seeds(4)


def test_seeds_and_a_certain_seed_are_refused_before_anything_is_planned():
    with pytest.raises(UserError, match="--seeds goes without --only seed=NAME"):
        plan_part("no-such-suite.yaml", (), ("seed=5",), seeds=1)


# -- as a command --------------------------------------------------------------------------------

# one run a seed: each waits until the seeds before it are on a printed board, and while there is a
# file `wait`
IN_STEP = '''
    import time
    from pathlib import Path
    from fedbench.core import Component, Defense, hookimpl

    def blocked():
        n = len(list(Path("r/records").glob("*.json")))
        unprinted = f"provisional: {n} of 3" not in Path("out").read_text()
        return n and (unprinted or Path("wait").exists())

    class InStep(Defense):
        """Halves updates."""
        def protect(self, update, ctx):
            while blocked():
                time.sleep(0.01)
            return update * 0.5

    @hookimpl
    def fedbench_defenses():
        yield Component("in-step", "in_step:InStep", "halves updates")
'''


@pytest.mark.slow
def test_two_provisional_boards_and_a_final_one_also_where_the_command_is_killed(tmp_path, site):
    install(site, "in_step", IN_STEP)
    path = suite(tmp_path, defenses=["in-step"], seeds=[0, 1, 2])
    output, page = tmp_path / "out", tmp_path / "r" / "leaderboard" / "board.md"
    (tmp_path / "wait").touch()
    with output.open("a") as file:
        process = start(path, tmp_path / "r", site, stdout_to=file)
        wait_for(lambda: "board: " in output.read_text(), process)
        process.kill()
        process.wait()
        assert "Provisional: 1 of 3 seeds of the plan" in page.read_text()
        (tmp_path / "wait").unlink()
        assert start(path, tmp_path / "r", site, stdout_to=file).wait() == 0
    marks = re.findall(r"server view( \(.*\))?$", output.read_text(), re.MULTILINE)
    assert marks == [f" {MARK.format(1)}", f" {MARK.format(2)}", ""]
    assert "Provisional" not in page.read_text()


def test_a_merged_folder_is_provisional_until_its_parts_have_all_seeds(tmp_path):
    parts = [folder_of(tmp_path / str(seed), (seed,)) for seed in SEEDS]
    for seed, part in zip(SEEDS, parts, strict=True):
        part.set_provisional(Provisional(seeds=[seed], of=len(SEEDS)))
    merge([part.root for part in parts[:2]], tmp_path / "two")
    assert Results(tmp_path / "two").provisional().seeds == [0, 1]
    merge([part.root for part in parts], tmp_path / "all")
    assert Results(tmp_path / "all").provisional() is None
