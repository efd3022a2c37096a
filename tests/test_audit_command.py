"""`fedbench audit`: recorded rounds are judged as those of a training, and what does not fit is
refused with the file and the remedy.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from federations import EQUAL, UNEQUAL, DigitsFederation, small, write
from tiny import normed, tiny_clients, tiny_module, tiny_setup
from torch.nn.functional import cross_entropy

import fedbench
from fedbench.core import UserError
from fedbench.core.cli.audit import suite_text
from fedbench.core.contract.defense import REMARKS
from fedbench.core.federation.loop import Training
from fedbench.core.recorded import components
from fedbench.core.recorded.components import RecordedModel, data_of, lone_clients, misfits_of
from fedbench.core.recorded.folder import Reply, open_recording
from fedbench.core.recorded.replay import RecordedRound, Replay
from fedbench.core.recorded.tensors import tensors
from fedbench.core.recording import save_holdout, save_samples
from fedbench.core.recording.rounds import write_tensors
from fedbench.leaderboard.gate.ceilings import DOUBTFUL
from fedbench.plugins.attacks.trajectory import LossSeries

# loss-series, fedmia-i, avg-cosine, fedmia-ii: mean AUC over the sites, as computed by hand from
# the uploads with the attacks' classes alone
BY_HAND = {EQUAL: (0.592, 0.695, 0.711, 0.696), UNEQUAL: (0.588, 0.686, 0.701, 0.678)}
ATTACKS = ("loss-series", "fedmia-i", "avg-cosine", "fedmia-ii")


@pytest.fixture
def folder(tmp_path):
    """A recording of three rounds of three clients."""
    return small(tmp_path / "a")


def replayed(folder):
    """The rounds of a recording, and what is odd about it."""
    recording = open_recording(folder)
    data = data_of(recording)
    base = folder / "base.safetensors"
    model = RecordedModel(
        function=recording.description.model, base=str(base) if base.is_file() else ""
    )
    module = model.build(data.input_shape, data.n_classes)
    clients = tiny_clients(len(recording.clients))
    setup = tiny_setup(module=module, clients=clients, members=())
    replay = Replay(setup, data.rounds(), data.optional)
    results = []
    for result in replay.rounds():
        uploads = replace(result.uploads, updates=result.uploads.updates.clone())
        results.append(replace(result, uploads=uploads))
    return results, replay.facts().get(REMARKS, []), replay.setup.flat


# -- the same rounds -------------------------------------------------------------------------------


class Saved(Training):
    """A training that keeps what an outsider would record of it, by name."""

    def __init__(self, setup):
        super().__init__(setup)
        self.received, self.uploads = [self.named(self.state[0])], []

    def named(self, state):
        self.setup.flat.load(state)
        return {a: v.clone() for a, v in self.setup.flat.module.state_dict().items()}

    def _upload(self, turn, uploads):
        state = self.setup.flat.module.state_dict()
        names = sorted(state)  # as files have them
        self.uploads[-1][turn.client] = {a: state[a].clone() for a in names}
        super()._upload(turn, uploads)

    def rounds(self):
        for t in range(1, self.setup.config.rounds + 1):
            self.uploads.append({})
            yield self._round(t)
            self.received.append(self.named(self.state[0]))

    def recorded(self, folder):
        received = [folder / f"{t}.safetensors" for t in range(len(self.received))]
        for path, model in zip(received, self.received, strict=True):
            write_tensors(path, model)
        for t, uploads in enumerate(self.uploads):
            replies = [
                Reply(k, None, False, folder / f"{t}-{k}.safetensors") for k in sorted(uploads)
            ]
            for reply in replies:
                write_tensors(reply.path, uploads[reply.client])
            yield RecordedRound(
                received=received[t],
                after=received[t + 1],
                replies=replies,
                weights=[self.setup.weighing[reply.client] for reply in replies],
            )


def tensors_of(result):
    uploads, state = result.uploads, result.state
    of_uploads = [uploads.updates, uploads.buffers, uploads.counts]
    return [*of_uploads, result.steps, state.params, state.buffers]


@pytest.mark.parametrize("module", [tiny_module, normed])
def test_a_recorded_federation_of_the_engine_gives_its_bits(module, tmp_path):
    training = Saved(tiny_setup(module=module(), participation=0.5))
    expected = []
    for result in training.rounds():
        expected.append((result.uploads.participants, [t.clone() for t in tensors_of(result)]))
    setup = tiny_setup(module=module(), members=(), participation=0.5)
    replay = Replay(setup, training.recorded(tmp_path))
    for again, (clients, values_sent) in zip(replay.rounds(), expected, strict=True):
        assert again.uploads.participants == clients
        for found, wanted in zip(tensors_of(again), values_sent, strict=True):
            assert torch.equal(found, wanted)
    assert replay.facts() == {}


# -- whether the uploads give the next model -------------------------------------------------------


def halved(received, state):
    return {a: v.half() if v.is_floating_point() else v.double() for a, v in state.items()}


def change(received, state):
    return {a: v - received[a] for a, v in state.items()}


def test_changes_of_a_model_and_coarse_types_are_read_as_models_are(tmp_path):
    plain, remarks, flat = replayed(small(tmp_path / "models"))
    assert not remarks
    deltas, remarks, _ = replayed(small(tmp_path / "deltas", changed=change, uploads="delta"))
    assert not remarks
    half, (remark,), _ = replayed(small(tmp_path / "half", changed=halved))
    assert remark == "parameters of type float16 were converted to the model's type as they are"
    for a, b, c in zip(plain, deltas, half, strict=True):
        torch.testing.assert_close(b.uploads.updates, a.uploads.updates)
        torch.testing.assert_close(c.uploads.updates, a.uploads.updates, rtol=1e-2, atol=1e-2)
        assert torch.equal(b.uploads.counts, a.uploads.counts)
        assert torch.equal(c.uploads.counts, a.uploads.counts)
    # in the order of the model, while the file has sorted names
    state = tensors(tmp_path / "models/rounds/002/b.safetensors")
    names = [name for name, _ in flat.module.named_parameters()]
    assert names != sorted(names)
    ordered = torch.cat([state[name].flatten() for name in names])
    again = plain[1].uploads
    torch.testing.assert_close(again.starts.params[0] + again.updates[1], ordered)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": "equal"}, "in 3 of 3 rounds the weighted mean .* is not the next received"),
        ({"weights": "samples"}, r"the one after \S*rounds/001/received.safetensors by 0\.\d\d "),
        ({"uploads": "delta", "changed": lambda received, state: state}, "check `uploads`"),
        ({"weights": "other"}, "were not compared"),
    ],
)
def test_uploads_that_do_not_give_the_next_model_mark_the_recording(tmp_path, changes, words):
    results, (remark,), _ = replayed(small(tmp_path / "a", **changes))
    assert len(results) == 3
    assert re.search(words, remark)
    assert remark.startswith(DOUBTFUL) == (changes.get("weights") != "other")


def test_absent_late_and_failed_clients_and_gaps_are_accepted(tmp_path):
    folder = small(tmp_path / "a", n=4)
    for number, name in (("001", "c"), ("003", "a")):
        reply = f'"client": "{name}"'
        text(f"rounds/{number}/round.json", reply, f'{reply}, "failed": "late"')(folder)
        without(f"rounds/{number}/{name}.safetensors")(folder)
    text(YAML, "rounds: 4", "rounds: [1, 3, 4]")(folder)
    without("rounds/002")(folder)
    results, (remark,), _ = replayed(folder)
    assert [r.uploads.participants for r in results] == [(0, 1), (1, 2), (0, 1, 2)]
    assert "in 1 of 2 rounds" in remark  # the third: what client a sent is in the next model
    assert misfits_of(open_recording(folder)) == []


def test_frozen_tensors_and_local_statistics_come_from_base(folder):
    local = {"0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
    first = tensors(folder / "rounds/001/received.safetensors")
    write_tensors(folder / "base.safetensors", {a: first[a] for a in local})
    for path in folder.glob("**/*.safetensors"):
        if path.name != "base.safetensors":
            write_tensors(path, {a: v for a, v in tensors(path).items() if a not in local})
    results, remarks, flat = replayed(folder)
    assert not remarks
    assert not flat.module[0].weight.requires_grad
    assert torch.equal(flat.module[0].weight, first["0.weight"])
    assert results[0].uploads.updates.shape == (3, 6 + 6 + 6 + 18 + 3)
    assert misfits_of(open_recording(folder)) == []


def test_a_frozen_tensor_that_no_file_has_is_not_drawn(tmp_path):
    folder = small(tmp_path / "a", model="federations:frozen_net")
    assert misfits_of(open_recording(folder)) == []
    first = tensors(folder / "rounds/001/received.safetensors")
    for path in folder.glob("**/*.safetensors"):
        write_tensors(path, {a: v for a, v in tensors(path).items() if a != "0.bias"})
    (misfit,) = misfits_of(open_recording(folder))
    assert re.search(r"base.safetensors: needs the frozen '0.bias', which rounds leave out", misfit)
    write_tensors(folder / "base.safetensors", {"0.bias": first["0.bias"]})
    assert misfits_of(open_recording(folder)) == []


def test_a_model_s_file_that_trains_when_imported_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = small(tmp_path / "a", model="loop_of_ones_own:build")
    (tmp_path / "loop_of_ones_own.py").write_text("raise ValueError('trained')")
    with pytest.raises(UserError, match=r"trained .* what trains belongs below `if __name__"):
        misfits_of(open_recording(folder))


def test_an_aggregate_alone_is_judged_as_one_client(tmp_path):
    folder = small(tmp_path / "a", server_sees="aggregate")
    for path in folder.glob("rounds/*/[abc].safetensors"):
        path.unlink()
    recording = open_recording(folder)
    data = data_of(recording)
    assert recording.clients == ["aggregate"] and set(data.train_client) == {0}
    results, remarks, _ = replayed(folder)
    assert not remarks
    for result in results:
        up = result.uploads
        assert up.participants == (0,)
        assert torch.equal(up.updates, result.steps)


# -- what does not fit -----------------------------------------------------------------------------


def text(path, old, new):
    def edit(folder):
        content = (folder / path).read_text()
        assert old in content
        (folder / path).write_text(content.replace(old, new, 1))

    return edit


def values(path, **change):
    def edit(folder):
        write_tensors(folder / path, tensors(folder / path) | change)

    return edit


def without(path):
    def edit(folder):
        target = folder / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return edit


def arrays(path, **change):
    def edit(folder):
        with np.load(folder / path) as old:
            np.savez(folder / path, **{**old, **change})

    return edit


def overlapping(folder):
    path = folder / "rounds/002/a.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header |= {f"twice{i}": header["0.weight"] for i in range(20)}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def plain_array(folder):
    with open(folder / "data/b.npz", "wb") as file:
        np.save(file, np.zeros((12, 4), "f4"))


def damaged(folder):
    path = folder / "data/b.npz"
    content = bytearray(path.read_bytes())
    content[80:120] = b"\xff" * 40  # of the first array's compressed bytes
    path.write_bytes(content)


def renamed(folder):
    path = folder / "rounds/002/a.safetensors"
    path.rename(path.with_name("A1.safetensors"))


def cut_off(folder):
    path = folder / "rounds/002/a.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


YAML, JSON, UPLOAD = "federation.yaml", "rounds/002/round.json", "rounds/002/a.safetensors"
NAN = torch.full((3,), float("nan"))
REFUSALS = {
    "empty description": (lambda f: (f / YAML).write_text(""), r"1:1: the file is empty, .* a fed"),
    "list": (lambda f: (f / YAML).write_text("[1]"), r"federation.yaml:1:1: expected .* found"),
    "no description": (without(YAML), r"n.yaml: missing, .* https://\S+/docs/recorded.md has"),
    "unknown field": (text(YAML, "classes", "colours"), r"federation.yaml:\d+:1: colours: "),
    "path as name": (text(YAML, '"a"', '"../../x"'), "name '../../x' cannot name a file"),
    "reserved name": (text(YAML, '"a"', '"Received"'), "none of received, final, base"),
    "names twice": (text(YAML, '"b"', '"A"'), "two clients are named 'a'"),
    "missing round": (without("rounds/002"), r"rounds/002: missing, and `rounds` in"),
    "cut off round": (without(JSON), r"round.json: missing, so that the round was cut off"),
    "other round": (text(JSON, '"round": 2', '"round": 3'), r"round.json: it is of round 3"),
    "no replies": (text(JSON, '"replies"', '"answers"'), r"expected an object with a list of"),
    "reply twice": (text(JSON, '"client": "b"', '"client": "a"'), "2 replies of client 'a'"),
    "unknown client": (text(JSON, '"client": "b"', '"client": "z"'), "client 'z' is none of"),
    "odd kind": (text(JSON, '"model"', '"sketch"'), "kind 'sketch' of client 'a'"),
    "odd weight": (text(JSON, '"weight": 1.0', '"weight": -1'), "weight -1 of client 'a'"),
    "flag as weight": (text(JSON, '"weight": 1.0', '"weight": true'), "weight True of client 'a'"),
    "large weight": (text(JSON, '"weight": 1.0', '"weight": 1e39'), r"weight 1e\+39 of client 'a'"),
    "some weights": (text(JSON, '"weight": 1.0', '"w": 1'), "client 'a' has no weight"),
    "missing upload": (without(UPLOAD), r"a.safetensors: missing, though round.json"),
    "renamed upload": (renamed, r"missing, .* and A1.safetensors is of no client"),
    "cut off upload": (cut_off, r"a.safetensors: the tensor '\S+' is cut off"),
    "empty upload": (lambda f: (f / UPLOAD).write_bytes(b""), r"cut off in its header; record"),
    "cut off header": (lambda f: (f / UPLOAD).write_bytes(b"\x09" + bytes(12)), "in its header"),
    "overlapping tensors": (overlapping, r"a.safetensors: its tensors overlap; write it"),
    "missing model": (
        without("rounds/002/received.safetensors"),
        "received.safetensors: missing; record",
    ),
    "other shape": (values(UPLOAD, **{"3.bias": torch.ones(4)}), r"'3.bias' is \[4\], the model's"),
    "unknown tensor": (values(UPLOAD, odd=torch.ones(1)), r"a.safetensors: 'odd' unknown to the"),
    "not finite": (values(UPLOAD, **{"3.bias": NAN}), r"a.safetensors: '3.bias' holds values that"),
    "no model": (text(YAML, ":small_net", ":smal_net"), "has no 'smal_net' - did you mean"),
    "no function": (text(YAML, ":small_net", ".small"), r":\d+:8: model: expected module:function"),
    "file as module": (text(YAML, ":small_net", ".py:small_net"), "'.py', as in federations:small"),
    "no module": (text(YAML, "federations:", "federation5:"), "cannot import 'federation5'"),
    "odd model": (text(YAML, ":small_net", ":not_a_module"), "returned int, expected a torch"),
    "no data": (without("data/b.npz"), r"data/b.npz: missing; `fedbench audit --help`"),
    "no hold-out": (without("holdout.npz"), r"holdout.npz: missing"),
    "no site": (text(YAML, "common", "sites"), r"holdout/a.npz: missing; `holdout: sites`"),
    "no labels": (arrays("data/b.npz", y=np.zeros(3, int)), r"b.npz: x is \[12, 4\] and y \[3\]"),
    "class": (arrays("data/b.npz", y=np.full(12, 3)), r"b.npz: labels go from 3 to 3"),
    "other data": (arrays("data/b.npz", x=np.zeros((12, 5), "f4")), r"b.npz: samples are \[5\]"),
    "no archive": (plain_array, r"data/b.npz: File is not a zip file; save it with numpy.savez"),
    "damaged": (damaged, r"data/b.npz: not a readable .npz archive .*; save it with numpy.savez"),
    "objects": (arrays("data/b.npz", x=np.full((12, 4), None)), r"b.npz: Object arrays cannot"),
}


@pytest.mark.parametrize(("edit", "words"), REFUSALS.values(), ids=REFUSALS)
def test_what_does_not_fit_is_refused_with_file_and_reason(edit, words, folder):
    edit(folder)

    def judge():
        misfits = misfits_of(open_recording(folder))
        if misfits:
            raise UserError(*misfits)
        replayed(folder)

    with pytest.raises(UserError, match=words):
        judge()


def test_samples_beyond_the_memory_of_the_machine_are_not_read(folder, monkeypatch):
    monkeypatch.setattr(components, "machine_memory", lambda: 200)
    monkeypatch.setattr(components, "read_npz", None)
    with pytest.raises(UserError, match=r"data/a.npz: its arrays have 0.0 GiB, and this machine"):
        data_of(open_recording(folder))


def test_other_layer_names_in_all_files_are_one_mistake(folder):
    for path in folder.glob("**/*.safetensors"):
        write_tensors(path, {f"net.{a}": v for a, v in tensors(path).items()})
    (misfit,) = misfits_of(open_recording(folder))
    assert "001/received.safetensors and 12 more files: '0.bias', '0.weight'" in misfit
    assert "missing, which the model has; 'net.0.bias', " in misfit


def test_integers_are_read_as_they_are_with_a_remark(tmp_path):
    def rounded(received, state):
        return {a: (50 * v).to(torch.int8) for a, v in state.items()}

    remarks = replayed(small(tmp_path / "a", changed=rounded))[1]
    assert [remark.startswith(DOUBTFUL) for remark in remarks] == [True, False]
    assert "type int8 were converted" in remarks[1] and "integers have no scale" in remarks[1]


def test_the_final_model_is_not_taken_for_that_before_a_cut_off_round(folder):
    (folder / "rounds/003/round.json").unlink()
    text(YAML, "rounds: 3", "rounds: 2")(folder)
    results, remarks, _ = replayed(folder)
    assert len(results) == 2 and not remarks


# -- the command -----------------------------------------------------------------------------------


def test_a_change_of_a_tensor_a_kind_or_the_base_is_another_recording(folder):
    digests = [data_of(open_recording(folder)).digest()]
    edits = [
        values(UPLOAD, **{"0.weight": torch.ones(6, 4)}),
        text(JSON, '"model"', '"delta"'),
        lambda folder: write_tensors(folder / "base.safetensors", {"3.bias": torch.zeros(3)}),
        lambda folder: write_tensors(folder / "base.safetensors", {"3.bias": torch.ones(3)}),
    ]
    for edit in edits:
        edit(folder)
        digests.append(data_of(open_recording(folder)).digest())
    assert len(set(digests)) == len(edits) + 1


def by_attack(results):
    return {row["attack"]: row["auc"] for row in results.cells.to_dict("records")}


def without_replies(folder, *names):
    """Take these clients out of every round."""
    for path in folder.glob("rounds/*/round.json"):
        content = json.loads(path.read_text())
        content["replies"] = [row for row in content["replies"] if row["client"] not in names]
        path.write_text(json.dumps(content))


@pytest.mark.slow
def test_a_client_that_sent_nothing_is_not_judged_and_keeps_no_other_from_it(tmp_path, capsys):
    folder = small(tmp_path / "a", weights="other")
    without_replies(folder, "b")
    options = {"results": tmp_path / "r", "attacks": "loss-series", "plots": False}
    results = fedbench.audit(folder, **options)
    assert by_attack(results)["loss-series"] > 0
    printed = capsys.readouterr().out
    assert "sent nothing in an audited round: 1 of 3 clients (b)" in printed
    assert "95 % intervals" not in printed and "runtime over" not in printed
    page = (tmp_path / "r/leaderboard/board.md").read_text()
    assert "of 3 clients 2 are judged and count in every number, those with the ids 0, 2" in page
    without_replies(folder, "a", "c")
    with pytest.raises(UserError, match="no client sent anything in an audited round"):
        fedbench.audit(folder, **options)


@pytest.mark.slow
def test_a_client_of_one_sample_is_not_judged_and_hides_no_leak_of_the_others(
    folder, tmp_path, capsys
):
    with np.load(folder / "data/b.npz") as old:
        save_samples(folder, "b", old["x"][:1], old["y"][:1])
    options = {"attacks": "loss-series", "plots": False}
    fedbench.audit(folder, results=tmp_path / "r", **options)
    printed = capsys.readouterr().out
    assert "hold-out sample has no error: 1 of 3 clients (b)" in printed
    page = (tmp_path / "r/leaderboard/board.md").read_text()
    assert "those with the ids 0, 2" in page and "is not known" not in page
    for name in ("a", "c"):
        shutil.copy(folder / "data/b.npz", folder / f"data/{name}.npz")
    with pytest.raises(UserError, match="every client that sent something has a single sample"):
        fedbench.audit(folder, results=tmp_path / "s", **options)


def test_targets_of_an_audit_sent_something_and_have_several_samples(folder):
    """Rounds of each recording are audited by its own numbers."""

    def targets(*coalition, others=()):
        recordings = [open_recording(folder), *map(open_recording, others)]
        lone = lone_clients(recordings[0])
        made = suite_text("demo", recordings, ["loss-series"], coalition, 2, lone)
        return yaml.safe_load(made)["settings"][0]["audit"].get("targets")

    assert (targets(), targets("a", "c")) == (None, [0, 2])
    other = shutil.copytree(folder, folder.parent / "other")
    for number in (1, 2, 3):
        path = other / f"rounds/{number:03d}"
        content = json.loads((path / "round.json").read_text())
        (path / "round.json").write_text(json.dumps(content | {"round": number - 1}))
        path.rename(other / f"rounds/{number - 1:03d}")
    assert targets(others=[other]) is None
    without_replies(folder, "b")
    assert (targets(), targets("a", "b")) == ([0, 2], [0])
    with pytest.raises(UserError, match="no client of the coalition sent anything"):
        targets("b")
    save_holdout(folder, np.zeros((1, 4), "f4"), np.zeros(1, int))
    with pytest.raises(UserError, match="every client that sent something has a single sample"):
        targets()


@pytest.mark.slow
def test_a_board_of_a_coalition_says_which_clients_count(folder, tmp_path):
    options = {"results": tmp_path / "r", "attacks": "loss-series", "plots": False}
    fedbench.audit(folder, coalition=["a", "c"], **options)
    page = (tmp_path / "r/leaderboard/board.md").read_text()
    assert "of 3 clients 2 are judged and count in every number, those with the ids 0, 2" in page


def test_a_mistake_of_data_and_model_has_no_place_in_a_file_that_is_gone(folder, tmp_path):
    text(YAML, "classes: 3", "classes: 9")(folder)
    with pytest.raises(UserError, match=r"^setting .a.: the model \S+ answers 2 samples with"):
        fedbench.audit(folder, results=tmp_path / "r")


@pytest.mark.slow
def test_a_recording_without_scores_is_not_said_to_leak_nothing(folder, tmp_path, words_of):
    values(UPLOAD, **{"3.bias": NAN})(folder)
    options = ["--attacks", "loss-series", "--no-plots", "--rerun", "failed"]
    words_of("audit", folder, *options, "--results", tmp_path / "r", status=1)
    page = (tmp_path / "r/leaderboard/board.md").read_text()
    assert "so what it leaks is not known" in page and "No attack beats chance" not in page


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_a_federation_of_ones_own_is_judged_as_by_hand(tmp_path, sizes):
    """Of names that are sorted in the files, avg-cosine would be .517; of uploads with the wrong
    sign .300; of a division that is not the federation's .500.
    """
    federation = DigitsFederation(sizes)
    results = fedbench.audit(
        federation.rounds(),
        clients=federation.sites,
        holdout=federation.holdout,
        model="federations:digits_net",
        classes=10,
        results=tmp_path / "results",
        attacks=ATTACKS,
        plots=False,
    )
    scores = by_attack(results)
    assert [scores[name] for name in ATTACKS] == pytest.approx(BY_HAND[sizes], abs=0.003)
    (row,) = results.rows.to_dict("records")
    assert row["trust"] == "claimed"
    board = results.board()
    (setting,) = board["settings"]
    page = (tmp_path / "results/leaderboard/board.md").read_text()
    assert "trained elsewhere, judged by rounds that its owner recorded" in page
    assert setting["name"] in page
    assert "The recorded federation leaks a worst case AUC of" in page
    assert "; TF01 takes 3 recordings, or 999 non-members of each client and" in page
    assert "No defense with all its scores" not in page
    judged = results.judge(LossSeries())
    assert judged["auc"].tolist() == pytest.approx([scores["loss-series"]])


def trained(state, x, y):
    """The state after 200 steps of SGD."""
    model = tiny_module()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.slow
def test_site_identity_counts_as_membership_unless_hold_outs_are_of_the_site(tmp_path):
    """Sites with shifted inputs, and models that have never seen the members."""
    rng = np.random.default_rng(0)

    def samples(k):
        x = rng.normal(size=(200, 4))
        y = (np.digitize(x[:, 0], (-0.5, 0.5)) + k) % 3  # each site has a rule of its own
        return (x + 2 * k).astype(np.float32), y

    members = {f"site-{k}": samples(k) for k in range(3)}
    of_sites = {f"site-{k}": samples(k) for k in range(3)}
    common = [np.concatenate(parts) for parts in zip(*of_sites.values(), strict=True)]

    torch.manual_seed(0)
    state, recorded = tiny_module().state_dict(), []
    for _ in range(3):
        # on samples of the site, and none of the members
        uploads = {f"site-{k}": (trained(state, *samples(k)), 1) for k in range(3)}
        recorded.append((state, uploads))
        state = {a: sum(s[a] for s, _ in uploads.values()) / 3 for a in state}
    recorded.append((state, {}))
    auc, boards = {}, {}
    for name, holdouts in (("sites", of_sites), ("common", {None: common})):
        described = {"model": "tiny:tiny_module", "classes": 3}
        folder = write(tmp_path / name, members, holdouts, recorded, **described)
        results = fedbench.audit(
            folder, results=tmp_path / f"{name}-results", attacks="loss-series", plots=False
        )
        auc[name] = by_attack(results)["loss-series"]
        boards[name] = (results.folder / "leaderboard/board.md").read_text()
    assert auc["sites"] == pytest.approx(0.5, abs=0.05)
    assert auc["common"] > 0.6
    assert "non-members are of each client's own site" in boards["sites"]
    assert "own site" not in boards["common"]


def test_the_command_checks_a_folder_without_computing(folder, tmp_path, words_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = words_of("audit", folder, "--dry-run", "--attacks", "loss-series")
    assert "3 clients, rounds 1 to 3, 9 uploads; names and shapes fit" in words
    assert not (tmp_path / "results").exists()
    words = words_of("audit", folder, small(tmp_path / "b", n=2), "--dry-run", status=2)
    assert "its rounds is not that of" in words
