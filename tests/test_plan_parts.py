"""`--part I/N`: a plan in parts on one folder, locks of results folders, and how many runs go side
by side.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
from dataclasses import replace

import pytest
from click.testing import CliRunner
from fake_packages import WAITING, install
from hypothesis import given, settings
from hypothesis import strategies as st
from running import called, fingerprint, invoke, outcomes, records, start, suite, wait_for

from fedbench.core.cli import machine
from fedbench.core.cli.machine import clean, cpu_quota
from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.run.plan import Plan
from fedbench.core.store import locks
from fedbench.core.store.locks import locked
from fedbench.core.store.results import Results
from fedbench.core.toolkit import download


@pytest.fixture(scope="module")
def job(finished):
    return build_plan(str(finished.parent / "tiny.yaml"), (), finished, "cpu").jobs[0]


@settings(max_examples=30)
@given(runs=st.integers(1, 40), n=st.integers(1, 9), order=st.randoms())
def test_parts_are_disjoint_equal_and_cover_the_plan_in_any_order(job, runs, n, order):
    jobs = [replace(job, seed=i) for i in range(runs)]
    shuffled = list(jobs)
    order.shuffle(shuffled)
    parts, again = (
        [Plan(suite="s", title="s", jobs=some).part(i + 1, n).jobs for i in range(n)]
        for some in (jobs, shuffled)
    )
    assert sorted(j.seed for part in parts for j in part) == [j.seed for j in jobs]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [{j.run_key for j in part} for part in again] == [
        {j.run_key for j in part} for part in parts
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5/4", "there is no such part"),
        ("1/4/2", "expected I/N"),
    ],
)
def test_a_part_that_does_not_exist_is_refused_before_anything_is_planned(text, why):
    with pytest.raises(UserError, match=why):
        called("no-such-suite.yaml", "--part", text)


def test_parts_on_one_folder_are_the_whole_and_the_last_one_writes_the_board(tmp_path, finished):
    path, folder = finished.parent / "tiny.yaml", tmp_path / "parts"
    for i in (1, 2):
        assert not (folder / "leaderboard").exists()
        output = invoke(path, "--results", folder, "--part", f"{i}/2", "--workers", i)
        assert f"part {i}/2: 1 of 2 runs" in output and "1 runs with 2 cells to compute" in output
    assert (
        fingerprint(folder) == fingerprint(finished)
        and Results.open(folder).marker() == Results.open(finished).marker()
    )
    assert (folder / "leaderboard" / "board.md").is_file()


# -- side by side ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly
def test_parts_run_at_once_on_one_folder_and_other_commands_are_refused(tmp_path, site):
    install(site, "waiting", WAITING)
    path, folder = suite(tmp_path, defenses=["waits"], seeds=[0, 1]), tmp_path / "r"
    (tmp_path / "wait").touch()
    both = [start(path, folder, site, more=("--part", f"{i}/2")) for i in (1, 2)]
    for i, process in enumerate(both, 1):
        wait_for(
            lambda i=i: (
                (folder / f".lock-{i}-of-2").exists()
                and len(list((folder / "logs").glob("*.log"))) == 2
            ),
            process,
        )
    with pytest.raises(UserError, match="part 1/2 is being run by another command"):
        called(path, "--results", folder, "--part", "1/2")
    refused = CliRunner().invoke(clean, [str(folder)])
    assert isinstance(refused.exception, UserError)
    (tmp_path / "wait").unlink()
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len(records(folder)) == 2 and (folder / "leaderboard" / "board.md").is_file()


def test_locks_of_a_folder(tmp_path):
    with locked(tmp_path), pytest.raises(UserError), locked(tmp_path, (1, 2)):
        raise AssertionError("a part beside a whole")
    with locked(tmp_path, (1, 2)), locked(tmp_path, (2, 2)):
        for held in (None, (1, 2), (2, 2)):
            with pytest.raises(UserError), locked(tmp_path, held):
                raise AssertionError(f"{held} beside two parts")
    with locked(tmp_path, (2, 3)):  # and all were let go
        assert locks.is_lock(".lock-2-of-3") and not locks.is_lock(".lock-me")


def test_a_file_system_without_locks_is_used_and_a_note_says_so(tmp_path, monkeypatch, capsys):
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    output = " ".join(invoke(suite(tmp_path), "--results", tmp_path / "r").split())
    assert (
        "its file system has no locks (No locks available), so that nothing stops a second"
        in output
    )
    assert outcomes(tmp_path / "r") == {"loss-series": ("ok", "")}
    with download.locked(tmp_path / "data"):
        assert (tmp_path / "data").is_dir()
    with locked(tmp_path, (1, 2)):
        assert capsys.readouterr().err.count("no locks") == 1


QUOTAS = {
    "version 2": ({"cpu.max": "250000 100000"}, 2.5),
    "version 2 without a limit": ({"cpu.max": "max 100000"}, 8),
    "version 1": ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
    "version 1 without a limit": (
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        8,
    ),
    "no control groups": ({}, 8),
}


@pytest.mark.parametrize(("files", "cores"), QUOTAS.values(), ids=QUOTAS)
def test_the_default_number_of_workers_follows_the_quota_of_a_container(
    tmp_path, monkeypatch, files, cores
):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert machine.cpu_quota(tmp_path, 8) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(machine, "cpu_quota", lambda groups, most: cpu_quota(tmp_path, most))
    assert machine.usable_cores() == math.ceil(cores)
