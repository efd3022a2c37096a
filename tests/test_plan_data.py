"""A plan and its data: one data set of one seed at a time, no hold-out that was trained on, no lists beyond a machine."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fake_packages import install
from good_suite import edited, write

from fedbench.core import Data, UserError
from fedbench.core.cli.main import cli
from fedbench.core.execution.plan import Plan, make_plan
from fedbench.core.execution.plugin_checks import repeated_share, require_room
from fedbench.core.experiment.job import key_of_run
from fedbench.core.registry.components import Registry
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.suite import Setting
from fedbench.plugins.datasets.digits import Digits

TWO_SETS = edited(
    ("seeds: [0, 1]", "seeds: [2, 0, 1]"),
    ("coalitions: [pair, half]", """\
  - {name: smaller, dataset: {name: digits, params: {test: 500}},
     federation: {clients: 5, rounds: 2, batch_size: 20, optimizer: {lr: 0.1}}}
  - {name: again, dataset: digits, federation: {clients: 5, rounds: 3, batch_size: 20, optimizer: {lr: 0.1}}}
coalitions: [pair, uniform]"""),
)  # fmt: skip


def plan(folder: Path, text: str) -> Plan:
    registry = Registry.discover()
    loaded, resolved = load_and_check(write(folder, text), registry)
    return make_plan(loaded, resolved, registry, folder / "results", "cpu")


def test_one_data_set_of_one_seed_is_in_memory_at_a_time(tmp_path, monkeypatch):
    alive: list[weakref.ref] = []
    most = []
    load = Digits.load

    def counted(self: Digits, seed: int) -> Data:
        data = load(self, seed)
        alive.append(weakref.ref(data))
        gc.collect()
        most.append(sum(ref() is not None for ref in alive))
        return data

    monkeypatch.setattr(Digits, "load", counted)
    jobs = plan(tmp_path, TWO_SETS).jobs
    assert len(jobs) == 3 * 3 * 3  # settings x (none, noise in two coalitions) x seeds
    assert most == [1] * 6  # two data sets x three seeds, each loaded once
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []


def test_jobs_stand_in_the_order_of_the_file(tmp_path):
    jobs = plan(tmp_path, TWO_SETS).jobs
    lines = [
        (setting, coalition, defense)
        for setting in ("digits", "smaller", "again")
        for coalition, defense in (("none", "none"), ("pair", "grad-noise"), ("uniform", "grad-noise"))
    ]
    wanted = [(*row, seed) for row in lines for seed in (2, 0, 1)]
    assert [(j.setting.name, j.coalition, j.defense.name, j.seed) for j in jobs] == wanted
    assert [j.run_key for j in jobs] == [key_of_run(j) for j in jobs]


PLUGIN = """
import numpy as np
from fedbench.core import Component, Data, Dataset, hookimpl
from fedbench.core import Params as Base
from pydantic import Field

@hookimpl
def fedbench_datasets():
    yield Component("twice", "again:Twice", "of whose hold-out some repeats training samples")

class Twice(Dataset):
    class Params(Base):
        repeated: int = Field(0, ge=0, le=100, description="hold-out samples that are training samples")

    def load(self, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(400, 6)).astype(np.float32)
        y = rng.integers(0, 3, 400)
        n = self.params.repeated
        x[300 : 300 + n], y[300 : 300 + n] = x[:n], y[:n]
        return Data(train_x=x[:200], train_y=y[:200], test_x=x[200:300], test_y=y[200:300], holdout_x=x[300:],
                    holdout_y=y[300:], n_classes=3)
"""


def twice(repeated: int) -> str:
    """A suite whose hold-out of 100 repeats so many training samples."""
    dataset = f"dataset: {{name: twice, params: {{repeated: {repeated}}}}}"
    return edited(("dataset: digits", dataset), ("seeds: [0, 1]", "seeds: [0]"), ("pair, half", "pair"))


def validated(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["validate", str(path)])
    return result.exit_code, result.output


def test_a_hold_out_that_repeats_some_training_samples_is_said(tmp_path, site):
    install(site, "again", PLUGIN)
    status, output = validated(write(tmp_path, twice(7)))
    assert status == 0, output
    assert output.endswith("cells; dataset 'twice', seed 0: 7.00% of the hold-out repeats training samples\n")
    repeating, clean = (plan(tmp_path, twice(n)).jobs[0] for n in (7, 0))
    assert repeating.described()["dataset"]["repeated_holdout"] == 0.07
    assert "repeated_holdout" not in clean.described()["dataset"]
    assert validated(write(tmp_path, twice(0)))[1].endswith("cells\n")


def test_a_hold_out_that_is_mostly_training_data_is_refused(tmp_path, site):
    install(site, "again", PLUGIN)
    assert validated(write(tmp_path, twice(50)))[0] == 0
    status, output = validated(write(tmp_path, twice(51)))
    assert status == 2
    assert "setting 'digits': dataset 'twice': 51 of 100 hold-out samples are training samples too" in output


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_repeated_samples_are_those_with_equal_values_and_label(dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (60, 1, 3, 3)).astype(dtype)
    y = rng.integers(0, 2, 60)
    data = Data(train_x=x[:20], train_y=y[:20], test_x=x[20:30], test_y=y[20:30], holdout_x=x[30:], holdout_y=y[30:], n_classes=2)
    train = [(row.tolist(), label) for row, label in zip(data.train_x, data.train_y, strict=True)]
    slow = sum((row.tolist(), label) in train for row, label in zip(data.holdout_x, data.holdout_y, strict=True))
    assert repeated_share(data, "d") == slow / 30


def test_audit_lists_beyond_a_machine_are_refused_by_their_numbers():
    def setting(clients: int, **audit: Any) -> Setting:
        federation = {"clients": clients, "rounds": 1, "batch_size": 1, "optimizer": {"lr": 0.1}}
        return Setting.model_validate({"name": "s", "dataset": "d", "federation": federation, "audit": audit})

    require_room(200, setting(200), 60_000, 2_000)
    require_room(3, setting(50_000), 60_000, 2_000)
    with pytest.raises(UserError, match=r"50,000 targets of 50,000 clients: .* name fewer clients in audit.targets"):
        require_room(50_000, setting(50_000), 60_000, 2_000)
    with pytest.raises(UserError, match="3,000 targets with up to 10,000 non-members make 30,060,000 candidates"):
        require_room(3_000, setting(3_000), 60_000, 2_000)


def test_more_clients_than_samples_are_refused_before_anything_is_made_for_each(tmp_path):
    text = edited(("clients: 4", "clients: 100000"))
    with pytest.raises(UserError, match="1200 training samples for 100000 clients: use fewer clients or more data"):
        plan(tmp_path, text)
