"""What `fedbench run` shows while it runs: on a terminal, in a log, of failures, and of what stood there before."""

from __future__ import annotations

import io
import os
import pty
import signal
from dataclasses import replace

import pytest
from fake_packages import install
from rich.console import Console
from running import HANG_S, invoke, start, suite, wait_for

from fedbench.core.cli import screen
from fedbench.core.cli.progress import Display
from fedbench.core.cli.run import build_plan
from fedbench.core.cli.standings import Standings
from fedbench.core.cli.tally import Tally
from fedbench.core.execution.executor import Watcher
from fedbench.core.execution.local_processes import LocalProcesses
from fedbench.core.execution.order import seed_by_seed
from fedbench.core.store.results import Results
from fedbench.core.words.narrow import columns, cut, fitted

HOSTILE = "\x1b[31m[red]x[/red]\u202e\u05d0\u05d1 \u6f22\u5b57\n" + "n" * 500
ATTACKS = ["loss-series", "fedmia-i", "fedmia-ii"]


HANGS = """
    import time
    from fedbench.core import Component, Defense, hookimpl

    class Hangs(Defense):
        def protect(self, update, ctx):
            open("hangs", "w").close()
            while True:
                time.sleep(1)

    @hookimpl
    def fedbench_defenses():
        yield Component("toy-hangs", "toys:Hangs", "a toy")
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    path = suite(folder, defenses=["none", "mixup", "hamp"], seeds=[0, 1], attacks=ATTACKS)
    return build_plan(str(path), (), folder / "r", "cpu")


def named(job, text: str):
    """The job with this name in every place."""
    return replace(
        job, setting=job.setting.model_copy(update={"name": text}), coalition=text,
        defense=job.defense.model_copy(update={"label": text}), attacker=job.defense.model_copy(update={"label": text}),
        cells=tuple(replace(c, attack=c.attack.model_copy(update={"label": f"{text}{i}"})) for i, c in enumerate(job.cells)),
    )  # fmt: skip


def tally_of(plan, jobs=None, **more) -> Tally:
    jobs = plan.jobs if jobs is None else jobs
    return Tally(jobs, {job.setting.name: plan.work["digits"] for job in jobs}, 0.0, **more)


def work_off(tally: Tally, job, aucs, now: float = 0.0) -> None:
    """The whole of a run."""
    tally.started(job, now)
    tally.advanced(job, 4, now + 10)
    for cell, auc in zip(job.cells, aucs, strict=True):
        tally.judging(job, cell.key, now + 10)
        tally.cell(job, cell.key, "ok", "", False, auc, now + 20)
    tally.finished(job, now + 20)


# -- on a terminal ------------------------------------------------------------------------------------------------------------


def test_a_screen_has_runs_cells_workers_time_and_rows(plan):
    tally = tally_of(plan, before=4)
    none, _, mixup, _, hamp, _ = plan.jobs
    work_off(tally, none, [0.7, 0.8, 0.9])
    work_off(tally, mixup, [0.5, 0.6, 0.7])
    tally.started(hamp, 40.0)
    tally.advanced(hamp, 3, 50.0)
    tally.started(plan.jobs[1], 50.0)
    tally.advanced(plan.jobs[1], 4, 52.0)
    tally.judging(plan.jobs[1], plan.jobs[1].cells[0].key, 55.0)
    head, time, *rest = screen.lines(tally, "tiny", 61.0, 100, 24)
    assert head.startswith("tiny ") and head.endswith(" 6/18 cells, 2/6 runs")
    assert time == "  1:01, less than a minute left"
    assert [" ".join(line.split()) for line in rest] == [
        "digits/pair hamp seed 0 round 3 of 4",
        "digits/none none seed 1 attack loss-series, 1 of 3",
        "so far, 10 of 22 cells, lowest and highest mean AUC:",
        "digits/pair: mixup 0.600 to none 0.800 (2 rows, 3 attacks)",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 72, 100, 200])
@pytest.mark.parametrize("name", ["digits", HOSTILE])
def test_no_line_is_wider_than_the_terminal_and_what_counts_is_in_it(plan, width, name):
    tally = tally_of(plan, jobs := [named(job, name) for job in plan.jobs])
    for job, auc in zip(jobs[:2], (0.5, 0.7), strict=True):
        tally.standings.add(replace(job, defense=job.defense.model_copy(update={"label": f"{name}{auc}"})), {"a": auc})
    for job in jobs:
        tally.started(job, 0.0)
        tally.advanced(job, 2, 30.0)
        tally.judging(job, job.cells[1].key, 31.0)
    lines = screen.lines(tally, name, 60.0, width, 24)
    assert max(map(columns, lines)) <= width and all(line.isprintable() for line in lines)
    text = "\n".join(lines)
    for fact in ("0/18 cells, 0/6 runs", "seed 0", "1 of 3", "left", "0.500", "0.700", "2 rows"):
        assert fact in text, text


def test_of_many_workers_a_low_screen_shows_the_first_and_counts_the_rest(plan):
    tally = tally_of(plan)
    for job in plan.jobs:
        tally.started(job, 0.0)
    lines = screen.lines(tally, "tiny", 1.0, 100, 8)
    assert len(lines) == 6 and lines[-1] == "  and 3 more"
    assert len(screen.lines(tally, "tiny", 1.0, 100, 24)) == 8


def drawn(plan, draw_s: float, seconds: float, monkeypatch) -> int:
    """How often a display is drawn that is told of something a hundred times a second, each drawing taking ``draw_s``."""
    now, times = Clock(), []
    display = Display(Console(file=io.StringIO(), force_terminal=True, width=100), tally_of(plan), now=now)

    def refresh(*_, **__) -> None:
        times.append(now.now)
        now.now += draw_s

    monkeypatch.setattr(display._live, "update", refresh)
    watcher = display.watcher()
    watcher.started(plan.jobs[0])
    while now.now < seconds:
        now.now += 0.01
        watcher.advanced(plan.jobs[0], 1)
        watcher.tick()
    return len(times)


def test_it_is_drawn_four_times_a_second_at_most_and_costs_a_twentieth_of_the_time(plan, monkeypatch):
    assert 30 <= drawn(plan, 0.0, 10.0, monkeypatch) <= 41
    assert 4 <= drawn(plan, 0.1, 10.0, monkeypatch) <= 6


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupt_leaves_the_terminal_as_it_was(tmp_path, site, how):
    install(site, "toys", HANGS)
    path = suite(tmp_path, defenses=["none", "toy-hangs"])
    ours, theirs = pty.openpty()
    process = start(path, tmp_path / "r", site, preexec_fn=lambda: signal.signal(how, signal.SIG_DFL), stdout_to=theirs)
    os.close(theirs)
    written = bytearray()

    def hangs() -> bool:
        written.extend(os.read(ours, 4096))
        return b"toy-hangs seed 0" in written and (tmp_path / "hangs").exists()

    wait_for(hangs, process)
    process.send_signal(how)
    with pytest.raises(OSError, match="Input/output error"):  # until the terminal's last writer is gone
        while True:
            written.extend(os.read(ours, 4096))
    assert process.wait(timeout=HANG_S) == 130
    text = written.decode()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again
    shown = text[text.rindex("\x1b[2K") + len("\x1b[2K") :]  # after the last line of the display was erased
    assert shown.splitlines()[0].startswith("interrupted: 1 of 2 cells are done and kept")
    assert "\x1b" not in shown


# -- in a log -----------------------------------------------------------------------------------------------------------------


def logged(plan, seconds: float, tally: Tally, told) -> list[str]:
    """The lines of so long a run without a terminal; ``told(watcher, second)`` every second."""
    written, now = io.StringIO(), Clock()
    with Display(Console(file=written, force_terminal=False, width=80), tally, now=now) as display:
        watcher = display.watcher()
        while now.now < seconds:
            told(watcher, now.now)
            watcher.tick()
            now.now += 1.0
    return written.getvalue().splitlines()


def test_a_log_has_the_same_facts_in_few_plain_lines(plan):
    tally = tally_of(plan, before=2)
    tally.standings.add(plan.jobs[0], {"a": 0.8})
    tally.standings.add(plan.jobs[2], {"a": 0.6})

    def told(watcher, second):
        if second == 0:
            watcher.started(plan.jobs[0])
        if second == 30:
            watcher.advanced(plan.jobs[0], 2)
        if second == 90:
            for cell in plan.jobs[0].cells:
                watcher.cell(plan.jobs[0], cell.key, "ok", "", False, 0.7)
            watcher.finished(plan.jobs[0])

    lines = logged(plan, 120.0, tally, told)
    assert len(lines) < 15 and "\x1b" not in "".join(lines)
    assert lines[0] == "[0/18 cells, 0/6 runs; 0:15, time left not known yet] running digits/none none seed 0 (starting)"
    assert lines[1].endswith("minutes left] running digits/none none seed 0 (round 2 of 4)")
    (so_far,) = (i for i, line in enumerate(lines) if line.startswith("so far, 2 of 20 cells"))
    assert lines[so_far + 1] == "  digits/pair: mixup 0.600 to none 0.800 (2 rows, 1 attack)"
    (ended,) = (line for line in lines if "finished" in line)
    assert ended.startswith("[3/18 cells, 1/6 runs; 1:30, about ") and ended.endswith("finished digits/none none seed 0")
    assert lines[-1].startswith("[3/18 cells, 1/6 runs; 2:00, about ") and lines[-1].endswith("] stopped")


def test_runs_that_finish_at_once_do_not_flood_a_log(plan):
    def told(watcher, second):
        if second == 3:
            for job in plan.jobs:
                watcher.started(job)
                for cell in job.cells:
                    watcher.cell(job, cell.key, "ok", "", False, None)
                watcher.finished(job)

    lines = logged(plan, 4.0, tally_of(plan), told)
    assert lines == ["[3/18 cells, 1/6 runs; 0:03, time left not known yet] finished digits/none none seed 0",
                     "[18/18 cells, 6/6 runs; 0:04] done"]  # fmt: skip


# -- failures -----------------------------------------------------------------------------------------------------------------


def test_a_failure_is_a_line_as_it_happens_with_the_reason_and_the_place(plan):
    none, _, mixup, *_ = plan.jobs
    first, second, third = none.cells

    def told(watcher, at):
        if at == 1:
            watcher.started(none)
            watcher.cell(none, first.key, "failed", "ValueError: out [red]of\x1b[2J\nideas " + "x" * 900, False, None)
            watcher.cell(none, second.key, "skipped", "no such view", False, None)
            watcher.cell(none, third.key, "diverged", "loss is not finite", True, None)
        if at == 2:
            watcher.started(mixup)
        if at in (2, 3, 4):  # they come one after the other, and make one line
            watcher.cell(mixup, mixup.cells[int(at) - 2].key, "failed", "a common cause", False, None)

    one, two, three, four, last = logged(plan, 5.0, tally_of(plan), told)
    assert one.startswith("failed: digits/none none seed 0, loss-series: ValueError: out [red]of\\u001b[2J ideas xxx")
    assert one.endswith(f"…; see records/{first.stem}.json") and len(one) < 500
    assert two == f"skipped: digits/none none seed 0, fedmia-i: no such view; see records/{second.stem}.json"
    assert three.startswith("diverged, as the adversary inside wanted: digits/none none seed 0, fedmia-ii: loss is not finite;")
    assert four == (
        "failed: digits/pair mixup seed 0, 3 attacks (loss-series, fedmia-i, fedmia-ii): a common cause; "
        f"see records/{mixup.cells[0].stem}.json and 2 more"
    )
    assert last.startswith("[6/18 cells, 2/6 runs, 4 failed, 1 skipped; 0:05")


def test_many_failures_with_one_reason_are_counted(plan):
    def told(watcher, at):
        if at == 1:
            for job in plan.jobs:
                watcher.started(job)
                for cell in job.cells:
                    watcher.cell(job, cell.key, "timeout", "too slow", False, None)

    lines = logged(plan, 4.0, tally_of(plan), told)
    assert [line.split(":")[0] for line in lines[:-1]] == ["timeout"] * 5 + [
        "  (timeout for this reason"
    ]
    assert lines[-1].startswith("[18/18 cells, 6/6 runs, 18 failed;")


# -- rows so far --------------------------------------------------------------------------------------------------------------


def test_rows_are_compared_over_the_attacks_that_all_have_and_floors_are_none(plan):
    none, _, mixup, _, hamp, _ = plan.jobs
    found = Standings(floors={"hamp"})
    found.add(none, {"a": 0.9, "b": 0.7, "c": 0.1})
    assert found.all() == []
    found.add(mixup, {"a": 0.6, "b": 0.8})
    found.add(replace(mixup, seed=1), {"a": 0.8, "b": 0.8})
    found.add(hamp, {"a": 0.5, "b": 0.5})
    (one,) = found.all()  # the undefended row, in which no client defends, stands beside the coalition's
    assert (one.setting, one.coalition, one.attacks, one.rows) == ("digits", "pair", 2, 2)
    assert one.best == ("mixup", pytest.approx(0.75)) and one.worst == ("none", pytest.approx(0.8))


def test_a_row_of_which_one_attack_is_known_hides_nothing_of_the_others(plan):
    none, _, mixup, _, hamp, _ = plan.jobs
    found = Standings()
    for job, auc in ((none, 0.9), (mixup, 0.6)):
        found.add(job, dict.fromkeys("abcd", auc))
    found.add(hamp, {"a": 0.1})
    (one,) = found.all()
    assert (one.best[0], one.worst[0], one.attacks, one.rows) == ("mixup", "none", 4, 2)


def test_a_run_counts_with_its_last_cell_and_once_however_often_it_is_started(plan):
    tally, job = tally_of(plan), plan.jobs[0]
    for cell in job.cells:
        tally.started(job, 0.0)
        assert tally.runs_done == 0 and tally.standings.all() == []
        tally.cell(job, cell.key, "ok", "", False, 0.7, 10.0)
        tally.finished(job, 10.0)
    assert (tally.done, tally.runs_done, tally.running) == (3, 1, {})


def test_cells_of_a_run_that_no_worker_took_are_waited_for_no_more(plan):
    tally = tally_of(plan, plan.jobs[:3])
    work_off(tally, plan.jobs[0], [0.5, 0.5, 0.5])
    before = tally.left(30.0).seconds
    for cell in plan.jobs[1].cells:
        tally.cell(plan.jobs[1], cell.key, "failed", "no node", False, None, 30.0)
    assert tally.runs_done == 2 and tally.left(30.0).seconds < 0.6 * before


# -- what it is told ----------------------------------------------------------------------------------------------------------


def test_an_executor_tells_of_rounds_attacks_and_what_they_found(tmp_path):
    plan = build_plan(str(suite(tmp_path, attacks=["loss-series", "fedmia-i"])), (), tmp_path / "r", "cpu")
    Results.create(tmp_path / "r", "tiny")
    told = []
    watcher = Watcher(
        advanced=lambda job, round: told.append(round), judging=lambda job, key: told.append(key),
        cell=lambda job, key, outcome, reason, by_adversary, auc: told.append((key, outcome, auc)),
    )  # fmt: skip
    LocalProcesses(1).execute(plan.jobs, watcher)
    first, second = (cell.key for cell in plan.jobs[0].cells)
    assert told[:5] == [1, 2, 3, 4, first] and told[6] == second
    found = {key: auc for key, _, auc in (told[5], told[7])}
    assert list(found) == [first, second] and all(0 < auc < 1 for auc in found.values())


def test_a_resumed_run_says_what_was_done_before_and_counts_its_rows(tmp_path):
    path = suite(tmp_path, seeds=[0, 1], defenses=["none", "mixup"], attacks=ATTACKS)
    assert "done before" not in invoke(path, "--results", tmp_path / "r", "--only", "seed=0")
    output = invoke(path, "--results", tmp_path / "r")
    assert "tiny: 2 runs with 6 cells to compute" in output and "; 6 of 12 cells were done before\n" in output
    assert "[6/6 cells, 2/2 runs; " in output


def test_every_row_has_its_first_seed_before_any_has_its_second(plan):
    assert [(job.seed, job.defense.label) for job in seed_by_seed(plan.jobs)] == [
        (seed, label) for seed in (0, 1) for label in ("none", "mixup", "hamp")
    ]


# -- names in columns ---------------------------------------------------------------------------------------------------------


def test_long_texts_lose_their_middle_and_wide_letters_count_twice():
    assert cut("abcdefgh", 8) == "abcdefgh" and cut("abcdefgh", 5) == "ab…gh" and cut("abcdefgh", 1) == "…"
    assert columns("\u6f22\u5b57a\u0301") == 5
    assert cut("\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57", 6) == "\u6f22…\u5b57" and cut("abc", 0) == ""


def test_the_longest_give_way_first_and_none_below_its_least():
    assert fitted([3, 4], 10, [6, 6]) == [3, 4]
    assert fitted([30, 10, 4], 24, [6, 6, 6]) == [10, 10, 4]
    assert fitted([30, 20, 4], 21, [6, 6, 6]) == [8, 9, 4]
    assert fitted([30, 20, 4], 5, [6, 6, 6]) == [6, 6, 4]
