"""Many cells and many records: what grows with their number, and what is not done twice."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path

import pytest
from contests import world
from many_records import write_results, write_suite
from running import invoke

from fedbench.core import UserError
from fedbench.core.cli.run import build_plan
from fedbench.core.execution import cells, resume
from fedbench.core.registry import ask
from fedbench.core.store import proven, reading, recount, validity
from fedbench.core.store.integrity import sealed
from fedbench.core.store.results import Results
from fedbench.leaderboard.board import MarkdownBoard
from fedbench.leaderboard.statistics import contest, sheets
from fedbench.leaderboard.statistics.pairs import all_told_apart
from fedbench.leaderboard.statistics.rivals import told_apart

SETTINGS, SECTIONS, CELLS = 2, 6, 96
COUNTED = {
    "validated": (reading, "validated"), "recounted": (recount, "_differences"), "scores read": (contest, "parts_of_kinds"),
    "pydantic": (validity, "_record"),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A suite of two settings, whose cells all have their records."""
    root = tmp_path_factory.mktemp("many")
    suite = write_suite(root, SETTINGS, 1, defenses=2, attacks=3)
    plan = write_results(suite, root / "results")
    assert len(plan.cells) == CELLS
    return suite, root / "results", plan


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of its results, of which nothing is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(made[1], tmp_path / "r"))


@pytest.fixture
def count(monkeypatch):
    """How often each of ``COUNTED`` was called since it was asked last."""
    calls = dict.fromkeys(COUNTED, 0)

    def counting(name, function):
        def counted(*args, **more):
            calls[name] += 1
            return function(*args, **more)

        return counted

    for name, (module, function) in COUNTED.items():
        monkeypatch.setattr(module, function, counting(name, getattr(module, function)))

    def since():
        found = dict(calls)
        calls.update(dict.fromkeys(calls, 0))
        return found

    return since


def change(record: Path) -> None:
    """Another measured time, as a run anew would have it: a good record with another digest."""
    content = json.loads(record.read_bytes())
    del content["digest"]
    content["measured"]["wall_s"] += 1
    record.write_bytes(sealed(content))


def a_record(folder: Path, number: int = 0) -> Path:
    return sorted((folder / "records").glob("*.json"))[number]


def board_of(folder: Path) -> bytes:
    return MarkdownBoard().write(folder, plots=False).read_bytes()


def test_a_run_of_many_cells_is_identified_once(made, monkeypatch):
    suite, root, plan = made
    asked = []
    monkeypatch.setattr(cells, "identity", lambda job, of=cells.identity: asked.append(job) or of(job))
    monkeypatch.setattr(ask, "ask_each", lambda items, question, quiet=False: iter([ask.Answer(question(i)) for i in items]))
    again = build_plan(str(suite), (), root, "cpu")
    assert len(asked) == len(again.jobs) + 2 * 2  # in both settings the undefended run comes up with each of three coalitions
    assert again.cells == plan.cells
    shared = {id(cell.identity["run"]) for job in again.jobs for cell in job.cells}
    assert len(shared) == len(again.jobs)


def test_what_was_checked_once_is_checked_again_only_where_it_changed(folder, count):
    first = board_of(folder)
    assert count() == {"validated": CELLS, "recounted": CELLS, "scores read": 2 * SECTIONS, "pydantic": CELLS}
    assert board_of(folder) == first
    assert count() == {"validated": 0, "recounted": 0, "scores read": 0, "pydantic": CELLS}
    change(a_record(folder))
    assert board_of(folder) != first  # another id
    found = count()
    assert (found["validated"], found["recounted"]) == (1, 1)
    assert 0 < found["scores read"] <= SECTIONS  # of the setting of this record, in each of whose sections it may stand


def test_resuming_reads_every_record_once(made, folder, count, monkeypatch):
    plan, store, read = made[2], Results(folder), []
    monkeypatch.setattr(resume, "read_brief", lambda path, *more, of=resume.read_brief: read.append(path) or of(path, *more))
    first = resume.recorded(plan.jobs, store)
    assert (len(first), len(set(read)), len(read)) == (CELLS, CELLS, CELLS)
    assert count()["pydantic"] == CELLS
    assert resume.recorded(plan.jobs, store) == first and count()["pydantic"] == 0
    assert resume.pending(plan.jobs, first, "failed") == []


def test_a_dry_run_says_what_is_done(made, folder):
    a_record(folder).unlink()
    said = invoke(made[0], "--results", folder, "--device", "cpu", "--dry-run")
    assert f"{CELLS} cells, {CELLS - 1} of them recorded" in said


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_changed_byte_is_refused_whatever_was_proven_before(folder, suffix):
    board_of(folder)
    path = a_record(folder, 7).with_suffix(suffix)
    content = bytearray(path.read_bytes())
    at = content.index(b"0.03") + 3 if suffix == ".json" else len(content) // 2
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=path.name.replace("[", r"\[")):
        board_of(folder)


def test_a_renamed_record_is_refused_whatever_was_proven_before(folder):
    board_of(folder)
    one, other = (a_record(folder, i) for i in (0, 1))
    for suffix in (".json", ".npz"):
        one.with_suffix(suffix).replace(other.with_suffix(suffix))
    with pytest.raises(UserError, match="holds another cell's record"):
        board_of(folder)


@pytest.mark.parametrize("damage", [
    lambda b: b[:-1], lambda b: b"\0" * 32 + b, lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b"",
])  # fmt: skip
def test_damaged_notes_prove_nothing(folder, count, damage):
    first = board_of(folder)
    count()
    for kind in (proven.notes_folder(), proven.notes_folder().parent / "contests"):
        for path in kind.iterdir():
            path.write_bytes(damage(path.read_bytes()))
    assert board_of(folder) == first
    found = count()
    assert (found["validated"], found["recounted"], found["scores read"]) == (CELLS, CELLS, 2 * SECTIONS)


def test_notes_are_bounded(folder, monkeypatch):
    board_of(folder)
    monkeypatch.setattr(proven, "MOST_NOTES", 100)
    change(a_record(folder))
    board_of(folder)
    (notes,) = proven.notes_folder().iterdir()
    assert notes.stat().st_size == 32 * 101


def test_scores_that_do_not_fit_into_memory_change_no_number(folder, monkeypatch, tmp_path):
    first = board_of(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(sheets, "MOST_BYTES", 0)
    monkeypatch.setattr(sheets, "_held", type(sheets._held)())
    assert board_of(folder) == first
    assert len(sheets._held) == 1


def test_what_records_have_in_common_is_one_object(folder):
    loaded = reading.load_records(folder)
    for read in (lambda r: r.described, lambda r: r.provenance, lambda r: r.identity.run["setting"]):
        assert len({id(read(one.record)) for one in loaded}) <= 4  # of two settings
    assert len({id(one.record.identity.run) for one in loaded}) == len({one.record.run_key for one in loaded})
    assert [one.record for one in loaded] == [reading.read_record(one.path).record for one in loaded]


def test_more_records_cost_more_memory_only_for_what_they_say(folder):
    """Of texts and sets that pydantic and JSON keep for every record, there is one for all."""
    one, other = (reading.read_record(a_record(folder, i)).record for i in (0, 5))
    assert one.model_fields_set is other.model_fields_set and one.targets[0].model_fields_set is other.targets[1].model_fields_set
    assert one.digests["data"] is other.digests["data"] and one.model_dump() != other.model_dump()


def test_all_pairs_at_once_are_told_apart_as_one_by_one():
    import numpy as np

    rng = np.random.default_rng(0)
    found = world(rng.uniform(0.5, 0.7, size=(6, 2, 4)), labels=list("abcdef"))
    rivals = {label: found.worst_rival(label) for label in "abcdef"}
    means, p_values = all_told_apart(found.parts, rivals)
    for (i, a), (j, b) in combinations(enumerate(rivals), 2):
        mean, p = told_apart(found.parts, rivals[a], rivals[b])
        assert means[i, j] == pytest.approx(mean, abs=1e-12) and p_values[i, j] == pytest.approx(p, abs=1e-9)
