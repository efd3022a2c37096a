"""FEMNIST from EMNIST's and from LEAF's files, and LEAF's network."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d, linear, max_pool2d, relu

from fedbench.core import Remote, UserError
from fedbench.core.registry.components import Registry
from fedbench.plugins.datasets.femnist import Femnist


def idx(a: np.ndarray) -> bytes:
    return bytes((0, 0, 8, a.ndim)) + np.array(a.shape, ">u4").tobytes() + a.astype(np.uint8).tobytes()


def emnist_files() -> dict[str, bytes]:
    """Images as EMNIST stores them: a bright bar in the first row of the upright image is a column there."""
    files = {}
    for part, n in (("train", 186), ("test", 124)):
        y = np.arange(n) % 62
        x = np.zeros((n, 28, 28), np.uint8)
        x[:, :, 0] = (y * 4 + 3)[:, None]
        files[f"emnist-byclass-{part}-images-idx3-ubyte"] = idx(x)
        files[f"emnist-byclass-{part}-labels-idx1-ubyte"] = idx(y)
    return files


@pytest.fixture
def emnist(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "gzip.zip", "w") as z:
        for name, content in emnist_files().items():
            z.writestr(f"gzip/{name}.gz", gzip.compress(content))
    content = (folder / "gzip.zip").read_bytes()
    remote = Remote("gzip.zip", Femnist.remote.urls, f"md5:{hashlib.md5(content).hexdigest()}", len(content))
    monkeypatch.setattr(Femnist, "remote", remote)
    monkeypatch.setattr(Femnist, "expected", (186, 124))
    return folder


def expect_bars(data: object, sizes: tuple[int, int, int]) -> None:
    for part, n in zip(("train", "test", "holdout"), sizes, strict=True):
        x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
        assert x.dtype == np.uint8 and x.shape == (n, 1, 28, 28)
        assert (x[:, 0, 0, :] == (y * 4 + 3)[:, None]).all() and not x[:, 0, 1:, :].any()


def test_emnist_is_read_upright_from_the_archive_and_as_it_is_unpacked(emnist):
    data = Femnist(holdout=62).load(0)
    expect_bars(data, (186, 62, 62))
    assert data.n_classes == 62 and Femnist.here() == f"{emnist} (EMNIST ByClass, writers: no)"
    assert data.mean == (round(float(data.train_x.mean() / 255), 4),)
    for name, content in emnist_files().items():
        (emnist / name).write_bytes(content)
    (emnist / "gzip.zip").unlink()
    assert Femnist(holdout=62, form="emnist").load(0).digest() == data.digest()


def test_leafs_files_are_read_and_preferred(leaf):
    data = Femnist(holdout=62).load(0)
    expect_bars(data, (248, 62, 62))
    assert data.train_y[:3].tolist() == [0, 1, 2] and data.train_y[62] == 31  # writer by writer
    assert Femnist.here() == f"{leaf} (LEAF, writers: yes)"
    with pytest.raises(UserError, match=r"gzip\.zip is not in"):
        Femnist(form="emnist").load(0)


def leaf_json(first: int = 0, n: int = 62, **changes: object) -> str:
    """One writer of LEAF: white paper (1.0), the first row inked; ``changes`` of the file or of the writer's x and y."""
    y = [(first + i) % 62 for i in range(n)]
    data = {"x": [[1 - (c * 4 + 3) / 255] * 28 + [1.0] * 756 for c in y], "y": y}
    data |= {k: v for k, v in changes.items() if k in "xy"}
    whole = {"users": ["w"], "num_samples": [n], "user_data": {"w": data}}
    return json.dumps(whole | {k: v for k, v in changes.items() if k not in "xy"})


@pytest.fixture
def leaf(home: Path) -> Path:
    folder = home / "femnist" / "data"
    for part, n in (("train", 62), ("test", 31)):
        (folder / part).mkdir(parents=True)
        for w in range(4):
            (folder / part / f"all_data_{w}.json").write_text(leaf_json(w * 31, n))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), [
    (None, "no json file in .*femnist/data/train: run 'preprocess.sh .* -t sample'"),
    (leaf_json(num_samples=[61]), "62 images, 62 labels, num_samples 61"),
    (leaf_json(x=[[1.01] * 784] * 62), "784 numbers"),
    (leaf_json(y=[62] * 62), r"writer 'w': 62 labels are not 0\.\.61"),
    (leaf_json(y=[5] * 62), "62 images, none of class 0"),
])  # fmt: skip
def test_a_bad_file_of_leafs_is_refused(leaf, text, message):
    for file in (leaf / "train").glob("*.json"):
        file.unlink()
    if text is not None:
        (leaf / "train" / "all_data_0.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        Femnist(holdout=62).load(0)
    assert "train" in str(caught.value)


def test_leafs_network_layer_by_layer():
    build = Registry.discover().get("model", "leaf-cnn").load()().build
    assert sum(p.numel() for p in build((1, 28, 28), 62).parameters()) == 6_603_710
    module = build((1, 13, 9), 5).double()
    x = torch.randn(3, 1, 13, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p, h = iter(module.parameters()), x
    for _ in range(2):
        h = max_pool2d(relu(conv2d(h, next(p), next(p), padding=2)), 2)
    h = relu(linear(h.flatten(1), next(p), next(p)))
    torch.testing.assert_close(module(x), linear(h, next(p), next(p)))
    with pytest.raises(UserError, match=r"leaf-cnn needs images \[channels, height >= 4, width >= 4\], not \[600\]"):
        build((600,), 2)
