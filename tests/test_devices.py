"""Several GPUs, one, or none: which one a run goes to, and what is said of one that is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from running import suite

from fedbench.core import UserError
from fedbench.core.cli.place import device_of
from fedbench.core.cli.run import build_plan
from fedbench.core.execution.devices import gpus_for, placed
from fedbench.core.experiment.job import key_of_run
from fedbench.core.spec.suite import Limits


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    return build_plan(str(suite(folder)), (), folder / "r", "cpu").jobs[0]


@pytest.fixture
def cards(monkeypatch):
    """Makes the machine one with these GPUs."""

    def have(*names):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(names))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: names[i])

    return have


def test_runs_on_cuda_go_to_the_gpu_with_the_fewest_of_them(job):
    asked, running = replace(job, device="cuda"), []
    for _ in range(5):
        running.append(placed(asked, running, ("cuda:0", "cuda:1")))
    assert [r.device for r in running] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    del running[1]
    assert placed(asked, running, ("cuda:0", "cuda:1")).device == "cuda:1"
    assert key_of_run(running[0]) == key_of_run(asked)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_run_stays_on_the_device_that_it_was_asked_for(job, device):
    asked = replace(job, device=device)
    assert placed(asked, [], ("cuda:0", "cuda:1")) is asked and gpus_for([asked]) == ()


def test_only_gpus_of_one_model_share_runs(job, cards):
    cards("H100", "A100", "H100")
    assert gpus_for([job, replace(job, device="cuda")]) == ("cuda:0", "cuda:2")


def here(wanted: str) -> str:
    return device_of(wanted, "local", Limits())


def test_a_gpu_that_is_not_there_is_refused_with_what_there_is(cards):
    cards()
    with pytest.raises(UserError, match="--device cuda: this machine has 0 CUDA devices; use --device cpu"):
        here("cuda")
    assert here("auto") == "cpu"
    cards("H100", "H100")
    with pytest.raises(UserError, match="--device cuda:2: this machine has 2 CUDA devices"):
        here("cuda:2")
    assert (here("cuda"), here("cuda:1"), here("auto")) == ("cuda", "cuda:1", "cuda")
    with pytest.raises(UserError, match="only cpu and cuda are supported"):
        here("mps")
