"""Events of `fedbench run`: what listeners get, and that a broken or hanging one costs nothing."""

from __future__ import annotations

import json
import re
import smtplib
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from fake_packages import install
from running import fingerprint, invoke, records, suite

from fedbench.core import BoardWritten, CellFinished, RunInfo
from fedbench.core.cli.events import Events
from fedbench.core.cli.run import build_plan
from fedbench.core.registry.components import Registry
from fedbench.core.run.executor import Watcher
from fedbench.core.store.results import Results

# writes what it gets to the file that its environment names
WRITES = """
    import json, os
    from dataclasses import asdict
    from fedbench.core import hookimpl

    @hookimpl
    def fedbench_events(event):
        with open(os.environ["EVENTS"], "a") as file:
            print(json.dumps([type(event).__name__, asdict(event)]), file=file)
"""
RAISES = """
    from fedbench.core import hookimpl

    @hookimpl
    def fedbench_events(event):
        print("so far so good")
        raise OSError(f"no route for {type(event).__name__}")
"""
HANGS = """
    import time
    from fedbench.core import hookimpl

    @hookimpl
    def fedbench_events(event):
        time.sleep(900)
"""


@pytest.fixture
def written(site, tmp_path, monkeypatch):
    """What the listener `writes` got so far: name -> fields of each event, in their order."""
    install(site, "writes", WRITES)
    monkeypatch.setenv("EVENTS", str(tmp_path / "events"))
    return lambda: [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


def plan(finished):
    """The jobs of the shared results."""
    return build_plan(str(finished.parent / "tiny.yaml"), (), finished, "cpu").jobs


def tell(watcher, job, rounds):
    """Call a watcher as an executor does."""
    watcher.started(job)
    for number, accuracy in enumerate(rounds, 1):
        if accuracy is not None:
            watcher.measured(job, [accuracy, 1.5])
        watcher.advanced(job, number)
    for cell in job.cells:
        watcher.cell(job, cell.key, "ok", "", False)
    watcher.finished(job)
    watcher.tick()


def test_events_are_typed_and_in_order_and_hold_what_the_records_do(finished, written):
    job = plan(finished)[0]
    with Events(Registry.discover().listeners) as events:
        tell(events.watching(Watcher()), job, (None, 0.25, None, 0.5))
        events.board("board", {"headers": ["a"], "rows": [["1"]], "headings": ["h"], "notes": []})
    names = [name for name, _ in written()]
    cells = ["CellFinished"] * len(job.cells)
    rounds = ["RoundFinished"] * 4
    assert names == ["RunStarted", *rounds, *cells, "RunFinished", "BoardWritten"]
    assert [event["accuracy"] for _, event in written()[1:5]] == [None, 0.25, None, 0.5]
    run = written()[0][1]["run"]
    assert (run["defense"], run["seed"], run["rounds"], run["cells"]) == ("none", 0, 4, 2)
    pooled = {r.record.attack.label: r.record.pooled for r in Results(finished).cells(job.stem)}
    for _, cell in written()[5:7]:
        for group, score in pooled[cell["attack"]].items():
            estimate = score.values["auc"]
            assert cell["scores"][group]["auc"] == [estimate.value, estimate.error]


def test_a_training_that_told_no_rounds_has_those_of_its_record(finished, written):
    job = plan(finished)[0]
    with Events(Registry.discover().listeners) as events:
        tell(events.watching(Watcher()), job, ())
    history = Results(finished).cells(job.stem)[0].record.history
    rounds = [e for name, e in written() if name == "RoundFinished"]
    assert [(e["round"], e["accuracy"]) for e in rounds] == [(r.round, r.accuracy) for r in history]
    assert [name for name, _ in written()][1:3] == ["RoundFinished", "RoundFinished"]


def test_a_listener_that_fails_or_hangs_is_named_once_and_costs_the_others_nothing(
    finished, written, site, monkeypatch, capsys
):
    install(site, "raises", RAISES)
    install(site, "hangs", HANGS)
    jobs = plan(finished)
    listeners = Registry.discover().listeners
    monkeypatch.setenv("FEDBENCH_PLUGIN_SECONDS", "2")
    with Events(listeners) as events:
        for job in jobs:
            tell(events.watching(Watcher()), job, (None, 0.25))
    notes = capsys.readouterr().err
    assert (
        notes.count("note: listener 'raises' (raises 1.0): OSError: no route for RunStarted") == 1
    )
    assert notes.count("note: listener 'hangs' (hangs 1.0): nothing moved for 2 s") == 1
    assert (notes.count("gets no more events"), notes.count("so far so good")) == (2, 1)
    assert sum(name == "RunFinished" for name, _ in written()) == len(jobs)


def test_the_mail_of_the_reference_names_failed_cells_and_has_the_board(monkeypatch):
    page = Path(__file__).parents[1] / "docs" / "reference" / "events.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    server = MagicMock()
    monkeypatch.setattr(smtplib, "SMTP", server)
    space = {"__name__": "mailing"}
    exec(compile(code, "mailing", "exec"), space)
    names = dict.fromkeys(("suite", "setting", "coalition", "defense", "adversary", "results"), "x")
    run = RunInfo(key="digits none 0", seed=0, rounds=4, cells=1, **names)
    failure = {"outcome": "failed", "reason": "no memory", "scores": {}}
    space["fedbench_events"](CellFinished(run=run, attack="yeom", view="server", **failure))
    for provisional in (True, False):
        table = {"headers": ["#", "defense"], "rows": [["1", "none"]], "headings": ["digits"]}
        space["fedbench_events"](BoardWritten(path="board", provisional=provisional, **table))
    text = "#  defense\n1  none\ndigits none 0 yeom: no memory\n"
    send = server.return_value.__enter__.return_value.send_message
    send.assert_called_once()
    (mail,) = send.call_args.args
    assert mail["Subject"] == "fedbench: board, 1 cells without a score"
    assert mail.get_content() == text


@pytest.mark.slow
def test_a_run_with_listeners_has_the_bits_of_one_without(tmp_path, finished, written, site):
    install(site, "raises", RAISES)
    path = suite(tmp_path, defenses=["none", "grad-noise"], attacks=["loss-series", "fedmia-ii"])
    output = invoke(path, "--results", tmp_path / "r", "--workers", "2")
    assert output.count("listener 'raises'") == 1
    assert fingerprint(tmp_path / "r") == fingerprint(finished)
    names = [name for name, _ in written()]
    counts = {name: names.count(name) for name in names}
    assert counts == {
        "RunStarted": 2,
        "RoundFinished": 8,
        "CellFinished": 4,
        "RunFinished": 2,
        "BoardWritten": 1,
    }
    measured = [e["accuracy"] for name, e in written() if name == "RoundFinished" and e["accuracy"]]
    history = [row["accuracy"] for r in records(tmp_path / "r").values() for row in r["history"]]
    assert sorted({*measured}) == sorted({*history})
