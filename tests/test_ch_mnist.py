"""CH-MNIST from Zenodo's archive, its folder, or Kaggle's table."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedbench.core import UserError
from fedbench.core.toolkit.check import check_data
from fedbench.core.toolkit.download import checksum_of
from fedbench.plugins.datasets.ch_mnist import CLASSES, ChMnist

PER_CLASS = 10
OFFICIAL = ChMnist.remote

pytestmark = pytest.mark.usefixtures("home", "small")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(ChMnist, "per_class", PER_CLASS)


def colours(c: int, i: int) -> np.ndarray:
    """[150, 150, 3]: flat but for one row, so that scaling changes little; its shade tells class and number."""
    shade = 3 * (PER_CLASS * c + i)
    pixels = np.full((150, 150, 3), (shade, shade, shade // 2), np.uint8)
    pixels[0] = 255
    return pixels


def tiles() -> dict[str, bytes]:
    files = {}
    for c, name in enumerate(CLASSES):
        for i in range(PER_CLASS):
            out = io.BytesIO()
            Image.fromarray(colours(c, i)).save(out, "TIFF")
            files[f"{ChMnist.folder}/{name}/tile_{i:02}.tif"] = out.getvalue()
    return files


def unpacked(home) -> None:
    for path, content in tiles().items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(content)


def table(n: int = PER_CLASS, seed: int = 0) -> str:
    """Kaggle's csv of n images a class; classes take turns."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8 * n, 4096))
    lines = [",".join(f"pixel{i:04}" for i in range(4096)) + ",label"]
    return "\n".join([*lines, *(",".join(map(str, [*row, i % 8 + 1])) for i, row in enumerate(pixels))]) + "\n"


def put_table(home, text: str):
    (home / "ch-mnist").mkdir()
    file = home / "ch-mnist" / "hmnist_64_64_L.csv"
    file.write_text(text)
    return file


def test_the_archive_is_verified_unpacked_made_grey_and_scaled(home, monkeypatch):
    archive = home / OFFICIAL.name
    with zipfile.ZipFile(archive, "w") as z:
        for path, content in {**tiles(), "__MACOSX/._x": b""}.items():
            z.writestr(path, content)
    with pytest.raises(UserError, match=r"its checksum is sha256:.*truncated or changed"):  # not the official one
        ChMnist().load(0)
    checksum = checksum_of(archive, "sha256:")
    monkeypatch.setattr(ChMnist, "remote", replace(OFFICIAL, checksum=checksum, size=archive.stat().st_size))
    data = check_data(ChMnist().load(0), "ch-mnist")
    assert data.input_shape == (1, 64, 64) and data.train_x.dtype == np.uint8 and data.n_classes == 8
    assert (data.mean, data.std) == ((0.5,), (0.5,))  # [-1, 1]
    grey = {int(np.asarray(Image.fromarray(colours(c, i)).convert("L"))[-1, 0]): c for c in range(8) for i in range(PER_CLASS)}
    for part in ("train", "test", "holdout"):
        x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
        shades = [int(v) for v in x[:, 0, -1, 0]]
        assert {grey[s] for s in shades} <= set(range(8)) and (np.bincount(y, minlength=8) == len(y) // 8).all()
        assert not (x[:, 0, 0] == x[:, 0, -1]).any()  # the white row stayed on top


def test_the_split_is_eighty_to_twenty_and_each_class_keeps_its_share(home):
    unpacked(home)
    assert ChMnist.here() == str(home / ChMnist.folder)
    data = ChMnist().load(0)
    for part, each in (("train", 8), ("test", 1), ("holdout", 1)):
        assert np.bincount(getattr(data, f"{part}_y"), minlength=8).tolist() == [each] * 8
    parts = [getattr(data, f"{p}_x").reshape(-1, 4096) for p in ("train", "test", "holdout")]
    assert len(np.unique(np.concatenate(parts), axis=0)) == 8 * PER_CLASS
    assert ChMnist(normalise="own").load(0).mean != (0.5,)
    assert ChMnist().load(0).digest() == data.digest() != ChMnist().load(1).digest()


def test_kaggles_table_is_preferred_and_read_row_by_row(home):
    unpacked(home)
    text = table()
    file = put_table(home, text)
    assert ChMnist.here() == str(file)
    data = check_data(ChMnist().load(0), "ch-mnist")
    rows = [np.array(line.split(","), int) for line in text.splitlines()[1:]]
    label = {row[:-1].astype(np.uint8).tobytes(): row[-1] - 1 for row in rows}
    seen = [(x.tobytes(), y) for p in ("train", "test", "holdout") for x, y in
            zip(getattr(data, f"{p}_x"), getattr(data, f"{p}_y"), strict=True)]  # fmt: skip
    assert len(dict(seen)) == 80 and all(label[x] == y for x, y in seen)
    first = rows[0][:-1].reshape(64, 64)
    assert any((x[0] == first).all() for p in ("train", "test", "holdout") for x in getattr(data, f"{p}_x"))


def cut(text: str, line: int, change) -> str:
    lines = text.splitlines()
    lines[line] = change(lines[line])
    return "\n".join(lines)


@pytest.mark.parametrize(("change", "told"), [
    (lambda t: "", r"csv:1: the columns are not pixel0000"),
    (lambda t: t.replace("pixel0000", "pixel_0"), r"csv:1: the columns are not"),
    (lambda t: cut(t, 3, lambda line: line.rsplit(",", 3)[0]), r"csv:4: 4,094 numbers, 4,097 expected: truncated\?"),
    (lambda t: cut(t, 2, lambda line: "256" + line[line.index(","):]), r"csv:3: a pixel or label that is no whole number 0"),
    (lambda t: cut(t, 2, lambda line: "-1" + line[line.index(","):]), r"csv:3: a pixel or label that is no whole number"),
    (lambda t: cut(t, 2, lambda line: "x" + line[line.index(","):]), r"csv:3: a pixel or label that is no whole number"),
    (lambda t: cut(t, 5, lambda line: line[:line.rindex(",")] + ",9"), r"csv:6: the label is 9, not 1\.\.8"),
    (lambda t: cut(t, 5, lambda line: line[:line.rindex(",")] + ",0"), r"csv:6: the label is 0, not 1\.\.8"),
    (lambda t: t + "\n", r"csv:82: more than 80 images"),
    (lambda t: cut(t, 7, lambda line: ""), r"csv:8: 0 numbers, 4,097 expected"),
    (lambda t: t[: t.rstrip().rindex("\n")], r"csv: 9 of 08_EMPTY, where ch-mnist has 10 of each class"),
], ids=["empty", "columns", "cut", "large", "negative", "text", "label 9", "label 0", "more", "blank", "fewer"])  # fmt: skip
def test_a_bad_table_is_named_with_its_line(home, change, told):
    put_table(home, change(table()))
    with pytest.raises(UserError, match=told):
        ChMnist().load(0)


@pytest.mark.parametrize(("spoil", "told"), [
    (lambda folder: (folder / "05_DEBRIS" / "tile_03.tif").unlink(), r"9 of 05_DEBRIS, where ch-mnist has 10 of each class"),
    (lambda folder: (folder / "09_OTHER").mkdir(), r"09_OTHER: an unknown class; the classes are 01_TUMOR, "),
    (lambda folder: (folder / "05_DEBRIS" / "tile_03.tif").write_bytes(b"II*\0"), r"tile_03\.tif: not a readable image"),
], ids=["missing", "class", "damaged"])  # fmt: skip
def test_a_bad_folder_is_named(home, spoil, told):
    unpacked(home)
    spoil(home / ChMnist.folder)
    with pytest.raises(UserError, match=told):
        ChMnist().load(0)


def test_an_archive_without_the_folder_is_refused(home, monkeypatch):
    archive = home / OFFICIAL.name
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("other/01_TUMOR/a.tif", b"")
    monkeypatch.setattr(ChMnist, "remote", replace(OFFICIAL, checksum=checksum_of(archive, "sha256:")))
    with pytest.raises(UserError, match=f"holds no folder '{ChMnist.folder}'; delete it and run again"):
        ChMnist().load(0)


def test_what_is_missing_is_said_with_both_ways_to_get_it(home):
    assert ChMnist.here() is False
    with pytest.raises(UserError) as caught:
        ChMnist().load(0)
    told = str(caught.value)
    assert "https://zenodo.org/record/53169/files/Kather_texture_2016_image_tiles_5000.zip (258.1 MB, sha256 936d0b95" in told
    by_hand = home / "ch-mnist" / "hmnist_64_64_L.csv"
    assert f"put it at {home / OFFICIAL.name}, or put Kaggle's hmnist_64_64_L.csv at {by_hand}" in told
