"""`--part I/N`: a plan in parts of like cost, on one folder or on several, and who may write into a folder beside whom."""

from __future__ import annotations

import errno
import fcntl
from dataclasses import replace

import pytest
from click.testing import CliRunner
from fake_packages import WAITING, install
from hypothesis import given
from hypothesis import strategies as st
from running import called, changed, fingerprint, invoke, records, start, suite, wait_for

from fedbench.core.cli.clean import command as clean
from fedbench.core.cli.main import cli
from fedbench.core.cli.place import parse_part
from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.execution.cost import Work, expected_cost, shares
from fedbench.core.store import locks
from fedbench.core.store.locks import locked
from fedbench.core.store.results import Results


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return build_plan(str(suite(folder)), (), folder / "r", "cpu").jobs[0]


def jobs_of(job, rounds):
    """Runs of these numbers of rounds, each of a key of its own."""
    made = []
    for i, n in enumerate(rounds):
        setting = job.setting.model_copy(update={"federation": job.setting.federation.model_copy(update={"rounds": n})})
        made.append(replace(job, run_key=f"{i:064d}", setting=setting, seed=i))
    return made


WORK = {"digits": Work(samples=1000, flops=1e6)}


@given(rounds=st.lists(st.integers(1, 5000), min_size=1, max_size=40), n=st.integers(1, 9), order=st.randoms())
def test_parts_are_disjoint_cover_the_plan_and_are_of_like_cost(job, rounds, n, order):
    jobs = jobs_of(job, rounds)
    parts = shares(jobs, WORK, n)
    assert len(parts) == n
    assert sorted(j.run_key for part in parts for j in part) == [j.run_key for j in jobs]
    cost = [sum(expected_cost(j, WORK["digits"]) for j in part) for part in parts]
    most = max(expected_cost(j, WORK["digits"]) for j in jobs)
    assert max(cost) - min(cost) <= most * (1 + 1e-9)  # what a greedy share promises
    shuffled = list(jobs)
    order.shuffle(shuffled)
    again = shares(shuffled, WORK, n)
    assert [{j.run_key for j in part} for part in again] == [{j.run_key for j in part} for part in parts]


def test_equal_runs_of_one_defense_are_spread(job):
    labelled = [job.defense.model_copy(update={"label": label}) for label in ("a", "b")]
    jobs = [replace(j, defense=defense) for defense in labelled for j in jobs_of(job, [5] * 4)]
    jobs = [replace(j, run_key=f"{i:064d}") for i, j in enumerate(jobs)]
    for part in shares(jobs, WORK, 4):
        assert sorted(j.defense.label for j in part) == ["a", "b"]


def test_a_run_costs_more_with_more_rounds_clients_epochs_models_and_larger_models(job):
    def cost(work=WORK["digits"], **federation):
        changes = {"federation": job.setting.federation.model_copy(update=federation)}
        return expected_cost(replace(job, setting=job.setting.model_copy(update=changes)), work)

    plain = cost()
    assert all(cost(**{name: value}) > plain for name, value in (("rounds", 40), ("local_epochs", 3)))
    assert cost(participation=0.5) < plain and cost(local_batches=1) < plain
    assert cost(Work(1000, 1e8)) > plain and cost(Work(9000, 1e6)) > plain


def test_a_plan_knows_what_its_models_cost(tmp_path):
    path = changed(tmp_path, {"model": {"name": "mlp", "params": {"hidden": [16]}}})
    plan = build_plan(str(path), (), tmp_path / "r", "cpu")
    assert plan.work["digits"].flops == 2 * (64 * 16 + 16 + 16 * 10 + 10)
    assert plan.share_of(plan) == 1


@pytest.mark.parametrize(("text", "why"), [
    ("0/4", "there is no such part"), ("5/4", "there is no such part"), ("1/100001", "there is no such part"),
    ("1", "expected I/N"), ("-1/4", "expected I/N"), ("a/b", "expected I/N"), ("1/4/2", "expected I/N"), ("", "expected I/N"),
])  # fmt: skip
def test_a_part_that_there_is_not_is_told_before_anything_is_planned(text, why):
    with pytest.raises(UserError, match=why):
        parse_part(text)
    with pytest.raises(UserError, match=why):
        called("no-such-suite.yaml", "--part", text)


def test_dry_run_shows_the_part(tmp_path):
    path = suite(tmp_path, seeds=[0, 1, 2, 3])
    output = invoke(path, "--results", tmp_path / "r", "--dry-run", "--part", "2/4")
    assert "part 2/4: 1 of 4 runs, 25.0% of the expected cost" in output and "1 runs, 1 cells, 0 of them recorded" in output


def test_parts_on_one_folder_are_the_whole_and_the_last_one_writes_the_board(tmp_path):
    path = suite(tmp_path, seeds=[0, 1, 2], attacks=["loss-series", "fedmia-i"])
    invoke(path, "--results", tmp_path / "whole")
    for i in (1, 2, 3):
        assert not (tmp_path / "parts" / "leaderboard").exists()
        output = invoke(path, "--results", tmp_path / "parts", "--part", f"{i}/3")
        assert "1 runs with 2 cells to compute" in output
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")
    markers = [Results.open(tmp_path / name).marker() for name in ("parts", "whole")]
    assert markers[0] == markers[1]
    assert (tmp_path / "parts" / "leaderboard" / "board.md").is_file()
    again = invoke(path, "--results", tmp_path / "parts", "--part", "4/9")  # more parts than runs: nothing to do
    assert "0 runs with 0 cells to compute" in again


def test_parts_on_folders_of_their_own_are_one_board_and_a_cell_that_differs_is_told_with_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = suite(tmp_path, seeds=[0, 1, 2], attacks=["loss-series"])
    for i in (1, 2, 3):
        invoke(path, "--results", tmp_path / f"r{i}", "--part", f"{i}/3")
    invoke(path, "--results", tmp_path / "r3", "--part", "1/3")  # a cell of two folders
    merged = CliRunner().invoke(cli, ["leaderboard", "r1", "r2", "r3", "--output", "b.txt", "--no-plots"])
    assert merged.exit_code == 0, merged.output
    assert "1 records are in r1 and in r3, with equal scores; those of r1 were kept" in merged.output
    assert "3 records of 3 sources" in merged.output and "no score" not in merged.output
    (one,) = (tmp_path / "r1" / "records").glob("*.json")
    other = tmp_path / "r3" / "records" / one.name
    store = Results(tmp_path / "r3")
    changed_ = store.read(one.stem).record.model_copy(update={"complaints": ["it was changed"]})
    scores = other.with_suffix(".npz").read_bytes()
    store.write(one.stem, changed_, scores)
    told = CliRunner().invoke(cli, ["leaderboard", "r1", "r2", "r3", "--output", "c.txt", "--no-plots"])
    assert told.exit_code == 2 and not (tmp_path / "c.txt").exists()
    assert f"r1/records/{one.name} and r3/records/{one.name}: one key, but they differ in complaints" in told.output


# -- side by side --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_parts_run_at_once_on_one_folder_and_nobody_else_does(tmp_path, site):
    install(site, "waiting", WAITING)
    path, folder = suite(tmp_path, defenses=["waits"], seeds=[0, 1]), tmp_path / "r"
    (tmp_path / "wait").touch()
    both = [start(path, folder, site, more=("--part", f"{i}/2")) for i in (1, 2)]
    for i, process in enumerate(both, 1):
        wait_for(lambda i=i: (folder / f".lock-{i}-of-2").exists() and len(list((folder / "logs").glob("*.log"))) == 2, process)
    stray = folder / "records" / ".tmp-of-the-other"
    stray.touch()
    for arguments, why in (
        ((), "another `fedbench run` is writing here"), (("--part", "1/2"), "part 1/2 is being run by another command"),
        (("--part", "1/3"), "/2 is being run here, which may hold runs of part 1/3"),
    ):
        with pytest.raises(UserError, match=why):
            called(path, "--results", folder, *arguments)
    refused = CliRunner().invoke(clean, [str(folder)])
    assert isinstance(refused.exception, UserError)
    assert stray.exists()  # what another part may be writing is nobody's stray
    (tmp_path / "wait").unlink()
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len(records(folder)) == 2 and (folder / "leaderboard" / "board.md").is_file()
    invoke(path, "--results", folder)
    assert not stray.exists()


def test_locks_of_a_folder(tmp_path):
    with locked(tmp_path), pytest.raises(UserError), locked(tmp_path, (1, 2)):
        raise AssertionError("a part beside a whole")
    with locked(tmp_path, (1, 2)), locked(tmp_path, (2, 2)):
        for held in (None, (1, 2), (2, 3)):
            with pytest.raises(UserError), locked(tmp_path, held):
                raise AssertionError(f"{held} beside two parts")
    with locked(tmp_path, (2, 3)):  # and all were let go
        assert locks.is_lock(".lock-2-of-3") and not locks.is_lock(".lock-me")


def test_a_file_system_without_locks_has_a_way_out(tmp_path, monkeypatch):
    def none(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    way_out = r"run each part into a folder of its own .* `fedbench leaderboard A B C`"
    with pytest.raises(UserError, match=way_out), locked(tmp_path):
        raise AssertionError("held")


def test_whoever_comes_second_to_a_new_folder_finds_it(tmp_path, monkeypatch):
    """Between its look for the marker and its claim, another part has made the folder."""
    real = Results._claim

    def late(self, suite):
        monkeypatch.setattr(Results, "_claim", real)
        Results.create(self.root, suite)
        real(self, suite)

    monkeypatch.setattr(Results, "_claim", late)
    assert Results.create(tmp_path / "r", "tiny").marker()["suite"] == "tiny"
