"""What `fedbench run` shows while it runs: on a terminal, in a log, of failures, and of what stood
there before.
"""

from __future__ import annotations

import io
import os
import pty
import re
import signal
from dataclasses import replace

import pytest
from fake_packages import WAITING, install
from rich.cells import cell_len
from rich.console import Console
from running import HANG_S, records, start, suite, wait_for

from fedbench.core.cli.progress import Display, failures_of
from fedbench.core.cli.run import build_plan
from fedbench.core.run.resume import CellState

HOSTILE = "\x1b[31m[red]x[/red]\u202e\u05d0\u05d1 \u6f22\u5b57\n" + "n" * 500
ATTACKS = ["loss-series", "fedmia-i", "fedmia-ii"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    path = suite(folder, defenses=["none", "mixup", "hamp"], seeds=[0, 1], attacks=ATTACKS)
    return build_plan(str(path), (), folder / "r", "cpu")


def shown(console: Console) -> str:
    """What stands on a terminal, without its codes."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


# -- on a terminal ---------------------------------------------------------------------------------


def test_a_screen_has_cells_and_workers(plan):
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=24)
    none, other, mixup, _, hamp, _ = plan.jobs
    with Display(console, plan.jobs, "tiny", now=lambda: 61.0) as display:
        watcher = display.watcher()
        for job in (none, mixup):
            watcher.started(job)
            for cell in job.cells:
                watcher.cell(job, cell.key, "ok", "", False)
            watcher.finished(job)
        watcher.started(hamp)
        watcher.advanced(hamp, 3)
        watcher.judging(other, other.cells[0].key)
        display._draw()
        text = " ".join(shown(console).split())
    facts = (
        "tiny",
        "6/18 cells",
        "digits/pair hamp seed 0 ",
        " round 3 of 4 ",
        "digits/none none seed 1 ",
        " attack loss-series, 1 of 3 ",
    )
    assert [fact for fact in facts if fact not in text] == []


def test_names_are_printable_and_no_line_is_wider_than_the_terminal(plan):
    jobs = [
        replace(job, defense=job.defense.model_copy(update={"label": f"{HOSTILE}{i}"}))
        for i, job in enumerate(plan.jobs)
    ]
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=24)
    with Display(console, jobs, "tiny") as display:
        for job in jobs:
            display.watcher().started(job)
        display._draw()
        text = shown(console)
    assert "\u202e" not in text and max(map(cell_len, text.splitlines())) <= 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "which", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)]
)
def test_a_signal_to_end_keeps_what_is_finished_and_leaves_the_terminal_as_it_was(
    tmp_path, site, which
):
    install(site, "waiting", WAITING)
    path = suite(tmp_path, defenses=["none", "waits"])
    (tmp_path / "wait").touch()
    ours, theirs = pty.openpty()
    # tests started in the background of a shell inherit an ignored SIGINT, and so would the command
    process = start(
        path,
        tmp_path / "r",
        site,
        preexec_fn=lambda: signal.signal(which, signal.SIG_DFL),
        stdout_to=theirs,
    )
    os.close(theirs)
    written = bytearray()

    def waits() -> bool:
        written.extend(os.read(ours, 4096))
        return b"waits seed 0" in written and (tmp_path / "waiting").exists()

    wait_for(waits, process)
    process.send_signal(which)
    # until the terminal's last writer is gone
    with pytest.raises(OSError, match="Input/output error"):
        while True:
            written.extend(os.read(ours, 4096))
    assert process.wait(timeout=HANG_S) == 130
    text = written.decode()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again
    # after the last line of the display was erased
    shown = text[text.rindex("\x1b[2K") + len("\x1b[2K") :]
    assert shown.splitlines()[0].startswith("interrupted: 1 of 2 cells are done and kept")
    assert "\x1b" not in shown and list(records(tmp_path / "r")) == [("none", "loss-series", 0)]


# -- in a log --------------------------------------------------------------------------------------


def logged(plan, seconds: int, told) -> list[str]:
    """The lines of so long a run without a terminal, without times; ``told(watcher, second)`` every
    second.
    """
    written, now = io.StringIO(), 0
    console = Console(file=written, force_terminal=False, width=80)
    with Display(console, plan.jobs, now=lambda: float(now)) as display:
        watcher = display.watcher()
        for now in range(seconds):
            told(watcher, now)
            watcher.tick()
    return [re.sub(r"; \d+:\d\d[^\]]*", "", line) for line in written.getvalue().splitlines()]


def test_a_failure_is_a_line_as_it_happens_with_the_reason_and_the_place(plan):
    none, _, mixup, *_ = plan.jobs
    first, second, third = none.cells

    def told(watcher, at):
        if at == 1:
            watcher.started(none)
            reason = "ValueError: out [red]of\x1b[2J\nideas " + "x" * 900
            watcher.cell(none, first.key, "failed", reason, False)
            watcher.cell(none, second.key, "skipped", "no such view", False)
            watcher.cell(none, third.key, "diverged", "loss is not finite", True)
        if at == 2:
            watcher.started(mixup)
        if at in (2, 3, 4):
            watcher.cell(mixup, mixup.cells[at - 2].key, "failed", f"cause {at - 1} of all", False)

    one, two, three, four, last = logged(plan, 5, told)
    assert one.startswith(
        "failed: digits/none none seed 0, loss-series: ValueError: out [red]of\\u001b[2J ideas xxx"
    )
    assert one.endswith(f"{'x' * 900}; see records/{none.stem}.json")  # a log is not clipped
    place = f"see records/{none.stem}.json"
    assert two == f"skipped: digits/none none seed 0, fedmia-i: no such view; {place}"
    assert three.startswith(
        "diverged as the adversary intended: digits/none none seed 0, fedmia-ii: loss is not "
        "finite;"
    )
    name = f"digits/pair mixup seed 0, {mixup.cells[0].attack.label}"
    assert four == f"failed: {name}: cause 1 of all; see records/{mixup.stem}.json"
    assert last.startswith(
        "[6/18 cells, 4 failed, 1 skipped, 1 diverged as the adversary intended]"
    )


def test_failures_are_a_row_a_cause_and_outcomes_are_counted_apart(plan, tmp_path, capsys):
    job, ended = plan.jobs[0], {}
    why = f"ValueError: {'x' * 900} in round "
    outcomes = [("failed", f"{why}3"), ("failed", f"{why}12"), ("timeout", "30 s")]
    for cell, (outcome, reason) in zip(job.cells, outcomes, strict=True):
        ended[cell.stem] = CellState(
            stem=cell.stem,
            outcome=outcome,
            reason=reason,
            by_adversary=False,
            complaints=(),
            cpu=None,
        )
    failures_of([job], ended, set()).show(tmp_path)
    title, _, first, second, counts = capsys.readouterr().out.splitlines()
    assert title == "cells without a score"
    assert first.split()[:2] == ["2", "failed"] and first.endswith(f"{why}3")
    assert second.split()[:2] == ["1", "timeout"]
    assert counts.startswith("cells without a score: 2 failed, 1 timed out. Fix the cause")
