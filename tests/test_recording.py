"""Writers of recordings: files of rounds, and what frameworks' messages make of them."""

import importlib
import itertools
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from fedbench.core import UserError
from fedbench.core.recording import Recorder, describe, save_holdout, save_samples
from fedbench.core.recording.flower import RecordedStrategy
from fedbench.core.recording.rounds import write_tensors

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "own-federation"
ONE = {"w": torch.ones(2)}
X = np.zeros((2, 3))
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U8": "u1", "BOOL": "?"}


def tensors_of(path):
    """A safetensors file by its specification: length, header, values; bfloat16 as its bits."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    arrays, end = {}, 0
    header = json.loads(content[8 : 8 + length])
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        assert start == end  # no gaps
        end = stop
        values = content[8 + length + start : 8 + length + stop]
        dtype = _NUMPY.get(entry["dtype"], "<u2")
        arrays[name] = np.frombuffer(values, dtype).reshape(entry["shape"])
    assert 8 + length + end == len(content)
    return arrays


def replies_of(folder, number):
    return json.loads((folder / "rounds" / f"{number:03d}" / "round.json").read_text())["replies"]


def test_tensors_of_every_type_and_layout_are_written_as_the_format_says(tmp_path):
    half = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    tied = torch.arange(6.0).reshape(2, 3)
    state = {
        "transposed": tied.t(),
        "tied": tied,
        "half": half,
        "fp16": np.float16([0.1, 7]),
        "steps": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "none": torch.zeros(0, 4),
        "number": 2.5,
        "bytes": np.uint8([1, 2, 255]),
        "parameter": torch.nn.Parameter(torch.ones(1, dtype=torch.float64)),
    }
    write_tensors(tmp_path / "a.safetensors", state)
    arrays = tensors_of(tmp_path / "a.safetensors")
    assert set(arrays) == set(state)
    bits = arrays.pop("half")
    assert torch.from_numpy(bits.astype(np.int16)).view(torch.bfloat16).tolist() == half.tolist()
    for name, array in arrays.items():
        value = state[name]
        expected = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        assert array.dtype == expected.dtype and array.shape == expected.shape
        assert np.array_equal(array, expected), name
    write_tensors(tmp_path / "b.safetensors", torch.nn.Linear(2, 1))
    assert sorted(tensors_of(tmp_path / "b.safetensors")) == ["bias", "weight"]
    with pytest.raises(UserError, match=r"expected a state dict or a torch.nn.Module, not list"):
        write_tensors(tmp_path / "b.safetensors", [torch.zeros(1)])
    for odd in ({"w": "text"}, {"w": None}, {"w": torch.zeros(1, dtype=torch.complex64)}):
        with pytest.raises(UserError, match=r"a\.safetensors: w "):
            write_tensors(tmp_path / "a.safetensors", odd)


BAD_NAMES = ["../../x", "a/b", "", ".hidden", "received", "Final", "BASE", "é", "a" * 65, "a\n"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_client_is_a_file_name_and_no_reserved_one(tmp_path, name):
    with (
        pytest.raises(UserError, match="cannot name a file"),
        Recorder(tmp_path / "r").round(ONE) as upload,
    ):
        upload(name, ONE)
    with pytest.raises(UserError, match="cannot name a file"):
        save_samples(tmp_path / "r", name, np.zeros((1, 2)), [0])
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["received.safetensors"]


def test_a_round_is_complete_when_it_ends_and_a_folder_has_one_recording(tmp_path):
    recorder = Recorder(tmp_path)
    with recorder.round(ONE) as upload:
        upload("a", {"w": torch.zeros(2)}, weight=40, loss=0.5)
        upload("b", ONE, kind="delta")
        assert not (tmp_path / "rounds" / "001" / "round.json").exists()
    assert replies_of(tmp_path, 1) == [
        {"client": "a", "kind": "model", "loss": 0.5, "weight": 40},
        {"client": "b", "kind": "delta"},
    ]
    assert tensors_of(tmp_path / "rounds" / "001" / "a.safetensors")["w"].tolist() == [0, 0]
    twice = pytest.raises(UserError, match="two replies of client 'A'")
    with twice, recorder.round(ONE) as upload:
        upload("a", ONE)
        upload("A", ONE)
    assert not (tmp_path / "rounds" / "002" / "round.json").exists()
    with pytest.raises(UserError, match="choose another folder"):
        Recorder(tmp_path)


def test_the_description_names_what_is_in_the_folder(tmp_path):
    def fields():
        describe(tmp_path, model="net:Net", classes=3)
        return YAML(typ="safe").load(tmp_path / "federation.yaml")

    recorder = Recorder(tmp_path)
    with pytest.raises(UserError, match="expected the text 'module:function', found <class"):
        describe(tmp_path, model=torch.nn.Linear, classes=3)
    with pytest.raises(UserError, match="no complete round"):
        fields()
    for _ in range(2):
        with recorder.round(ONE) as upload:
            upload("b", ONE)
    with pytest.raises(UserError, match="no hold-out"):
        fields()
    save_holdout(tmp_path, X, [0, 1])
    with pytest.raises(UserError, match="no samples of a client"):
        fields()
    for name in "ba":
        save_samples(tmp_path, name, torch.zeros(2, 3), torch.tensor([0, 2]))
    first = fields()
    assert (first["clients"], first["rounds"], first["holdout"]) == (["a", "b"], 2, "common")
    save_holdout(tmp_path, X, [0, 1], client="a")
    (tmp_path / "rounds" / "001" / "round.json").unlink()  # cut off
    assert fields() == first | {"rounds": [2], "holdout": "both"}
    with np.load(tmp_path / "data" / "a.npz") as samples:
        assert samples["x"].dtype == np.float32 and samples["y"].tolist() == [0, 2]
    for x, y, problem in (
        (X, [0], "do not fit"),
        (X, [0.0, 1.0], "labels are float64"),
        (np.array(["a", "b"]), [0, 1], "samples are <U1"),
    ):
        with pytest.raises(UserError, match=problem):
            save_samples(tmp_path, "a", x, y)


# --- Flower ---------------------------------------------------------------------------------------


class Mean:
    """A strategy of Flower's shape."""

    def __init__(self, messages):
        self.messages = messages

    def configure_train(self, server_round, arrays, config, grid):
        return self.messages(server_round)

    def aggregate_train(self, server_round, replies):
        return server_round, len(replies)

    def summary(self):
        return "mean"


def array(*values):
    value = np.float32(values)
    return SimpleNamespace(numpy=lambda: value, data=value.tobytes())


def message(node, values, name=None, n=None, error=None):
    config = {} if name is None else {"fedbench": {"client": name}}
    content = SimpleNamespace(
        array_records={"arrays": {"w": array(*values)}},
        metric_records={"metrics": {"num-examples": n}},
        config_records=config,
    )
    metadata = SimpleNamespace(src_node_id=node, dst_node_id=node)
    return SimpleNamespace(
        metadata=metadata, content=content, error=error, has_error=lambda: error is not None
    )


def test_flower_messages_are_recorded_and_the_strategy_sees_them_all(tmp_path):
    strategy = RecordedStrategy(
        Mean(lambda number: [message(k, [number]) for k in range(5)]), tmp_path
    )
    assert strategy.summary() == "mean"
    assert len(strategy.configure_train(1, None, None, None)) == 5
    failed = message(3, [0], error=SimpleNamespace(code=7, reason="disk full"))
    replies = [
        message(1, [2], "b", 60),
        message(0, [1], "a", 40),
        message(2, [3], "../x", 9),
        failed,
    ]
    assert strategy.aggregate_train(1, iter(replies)) == (1, 4)
    rows = replies_of(tmp_path, 1)
    assert [(row.get("client"), row.get("weight"), row["node"]) for row in rows] == [
        ("b", 60, 1),
        ("a", 40, 0),
        ("node-2", 9, 2),
        (None, None, 3),
        (None, None, 4),
    ]
    assert [row["failed"] for row in rows[3:]] == ["7: disk full", "no reply"]
    assert tensors_of(tmp_path / "rounds" / "001" / "b.safetensors")["w"].tolist() == [2]

    strategy.configure_train(2, None, None, None)
    stolen = [message(0, [1], "B"), message(1, [2], "b"), message(2, [3], "node-0")]
    strategy.aggregate_train(2, stolen)
    clients = [row["client"] for row in replies_of(tmp_path, 2)[:3]]
    assert clients == ["node-0", "b", "node-2"]
    assert tensors_of(tmp_path / "rounds" / "002" / "received.safetensors")["w"].tolist() == [2]


def test_flower_clients_that_receive_different_models_are_refused(tmp_path):
    strategy = RecordedStrategy(Mean(lambda _: [message(0, [1]), message(1, [2])]), tmp_path)
    with pytest.raises(UserError, match="round 1: clients receive different models"):
        strategy.configure_train(1, None, None, None)


def test_flower_s_own_classes_are_recorded(tmp_path, monkeypatch):
    app = pytest.importorskip("flwr.app", reason="not installed: fedbench-privacy[flower]")
    fedavg = importlib.import_module("flwr.serverapp.strategy").FedAvg
    identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(identity, name, 1)  # without one no message can be made

    def content(value, **records):
        arrays = app.ArrayRecord({"w": torch.full((2,), float(value))})
        return app.RecordDict({"arrays": arrays, **records})

    grid = SimpleNamespace(get_node_ids=lambda: [11, 22])
    strategy = RecordedStrategy(fedavg(min_available_nodes=2), tmp_path)
    arrays = content(0)["arrays"]
    replies = []
    for sent in strategy.configure_train(1, arrays, app.ConfigRecord(), grid):
        node = sent.metadata.dst_node_id
        metrics = app.MetricRecord({"num-examples": node})
        named = app.ConfigRecord({"client": f"site-{node}"})
        reply = content(node, metrics=metrics, fedbench=named)
        replies.append(app.Message(reply, reply_to=sent))
    mean, _ = strategy.aggregate_train(1, replies)
    assert mean["w"].numpy() == pytest.approx((11 * 11 + 22 * 22) / 33)
    assert weighted_mean(tmp_path, 1)["w"] == pytest.approx(mean["w"].numpy())


# --- NVFlare --------------------------------------------------------------------------------------


def test_nvflare_events_are_recorded(tmp_path):
    pytest.importorskip("nvflare", reason="not installed: fedbench-privacy[nvflare]")
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.app_constant import AppConstants as Name
    from nvflare.app_common.app_event_type import AppEventType

    from fedbench.core.recording.nvflare import RecordRounds

    def context(site, number, **properties):
        peer = SimpleNamespace(get_identity_name=lambda: site)
        fl_ctx = FLContext()
        fl_ctx.set_peer_context(peer)
        for name, value in ({Name.CURRENT_ROUND: number} | properties).items():
            fl_ctx.set_prop(name, value)
        return fl_ctx

    def task(value, number, kind=DataKind.WEIGHTS):
        tensors = {"w": np.float32([value]), "frozen": None}
        shareable = DXO(kind, tensors, {"NUM_STEPS_CURRENT_ROUND": 60}).to_shareable()
        shareable.set_header(Name.CURRENT_ROUND, number)
        return shareable

    recorder = RecordRounds(str(tmp_path))
    recorder.handle_event(EventType.START_RUN, context("server", 0))
    for site in ("a", "b", "c", "d"):
        sent = context(site, 0, **{Name.TRAIN_SHAREABLE: task(1, 0)})
        recorder.handle_event(AppEventType.BEFORE_TRAIN_TASK, sent)
    for site, kind, accepted in (
        ("b", DataKind.WEIGHT_DIFF, True),
        ("a", DataKind.WEIGHTS, True),
        ("c", DataKind.WEIGHTS, False),
    ):
        result = task(5, 0, kind)
        properties = {Name.TRAINING_RESULT: result, Name.AGGREGATION_ACCEPTED: accepted}
        event = AppEventType.AFTER_CONTRIBUTION_ACCEPT
        recorder.handle_event(event, context(site, 0, **properties))
        recorder.handle_event(event, context(site, 7, **properties))  # of another round
    assert not (tmp_path / "rounds" / "000" / "round.json").exists()
    recorder.handle_event(AppEventType.AFTER_AGGREGATION, context("server", 0))
    assert replies_of(tmp_path, 0) == [
        {"client": "b", "kind": "delta", "weight": 60},
        {"client": "a", "kind": "model", "weight": 60},
        {"client": "c", "failed": "not accepted by the server"},
        {"client": "d", "failed": "no reply"},
    ]
    names = sorted(path.name for path in (tmp_path / "rounds" / "000").iterdir())
    assert names == ["a.safetensors", "b.safetensors", "received.safetensors", "round.json"]


# --- examples/own-federation ----------------------------------------------------------------------


def weighted_mean(folder, number):
    """The mean of a round's uploads by the weights of ``round.json``."""
    rows = replies_of(folder, number)
    total = sum(row["weight"] for row in rows)
    mean = {}
    for row in rows:
        path = folder / "rounds" / f"{number:03d}" / f"{row['client']}.safetensors"
        for name, value in tensors_of(path).items():
            mean[name] = mean.get(name, 0) + value * (row["weight"] / total)
    return mean


def check_example(folder, fields, numbers):
    """Every site is in every round, and each round's mean is the next one's model."""
    assert fields["rounds"] == len(numbers) and len(fields["clients"]) == 6
    for number in numbers:
        assert {row["client"] for row in replies_of(folder, number)} == set(fields["clients"])
    for number, following in itertools.pairwise(numbers):
        received = tensors_of(folder / "rounds" / f"{following:03d}" / "received.safetensors")
        mean = weighted_mean(folder, number)
        assert received.keys() == mean.keys()
        for name, value in received.items():
            assert value == pytest.approx(mean[name], abs=1e-6)


def as_installed(folder):
    """The packages as a wheel has them: NVFlare looks for a component's file below its package."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "api", folder / "fedbench", ignore=ignored)
    shutil.copytree(ROOT / "core", folder / "fedbench" / "core", ignore=ignored)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "framework", "first"),
    [
        ("torch_loop", "torch", 1),
        pytest.param("flower_app", "flwr", 1, marks=pytest.mark.nightly),
        pytest.param("nvflare_job", "nvflare", 0, marks=pytest.mark.nightly),
    ],
)
def test_an_example_is_recorded_and_judged(script, framework, first, tmp_path, monkeypatch, call):
    """One federation in each framework: up to the seeds of batches all are the same."""
    pytest.importorskip(framework, reason="not installed: see examples/own-federation")
    monkeypatch.setenv("PYTHONPATH", str(as_installed(tmp_path / "installed")))
    folder = tmp_path / "digits"
    subprocess.run([sys.executable, EXAMPLE / f"{script}.py", folder], check=True, timeout=800)
    fields = YAML(typ="safe").load(folder / "federation.yaml")
    check_example(folder, fields, range(first, first + 15))

    monkeypatch.chdir(EXAMPLE)
    status, words = call("audit", folder, "--attacks", "avg-cosine", "--results", tmp_path / "r")
    assert status == 0, words
    (path,) = (tmp_path / "r" / "records").glob("*.json")
    (cell,) = json.loads(path.read_text())["cells"]
    sites = [target["groups"]["ofl"]["values"]["auc"]["value"] for target in cell["targets"]]
    assert len(sites) == 6 and np.mean(sites) == pytest.approx(0.70, abs=0.03)
