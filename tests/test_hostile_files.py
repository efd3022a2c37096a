"""Files of unknown origin: what a few bytes may cost, what their content may start, names that are
no text.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from fedbench.core import UserError
from fedbench.core.toolkit import decode_images
from fedbench.core.toolkit.arrays import SUFFIXES
from fedbench.plugins.datasets.folders import ImageFolder
from fedbench.plugins.datasets.tabular import Location30

EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n0 0 8 8 rectfill\nshowpage\n"
)
MIB = 1 << 20


def test_postscript_called_an_image_starts_no_interpreter_and_images_are_read(
    tmp_path, monkeypatch
):
    def started(*args, **kwargs):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", started)
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    said, shapes = {}, {}
    for suffix in SUFFIXES:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(EPS)
        with pytest.raises(UserError) as caught:
            decode_images([path])
        said[suffix] = f"x{suffix}: not a readable image (UnidentifiedImageError" in str(
            caught.value
        )
        grey.save(path)
        shapes[suffix] = decode_images([path]).shape
    assert set(said.values()) == {True} and shapes == {
        s: (1, 3 if s == ".webp" else 1, 8, 8) for s in SUFFIXES
    }


def packed(path, *parts):
    """A gzip file of these parts."""
    with gzip.open(path, "wb", compresslevel=1) as f:
        for part in parts:
            f.write(part)
    return path


def header(kind, size, name):
    """One header of a tar archive."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


HOSTILE = {
    "a large file": (
        header(tarfile.REGTYPE, 10**10, "bangkok"),
        1024,
        "more than 17,955,840 bytes unpacked",
    ),
    "a large neighbour": (
        header(tarfile.REGTYPE, 10**10, "other"),
        1024,
        "more than 17,955,840 bytes unpacked",
    ),
    "many neighbours": (
        b"".join(header(tarfile.REGTYPE, 0, f"{i}") for i in range(1001)),
        0,
        "more than 1,000 files",
    ),
}


@pytest.mark.parametrize(("start", "zeros", "refusal"), HOSTILE.values(), ids=HOSTILE)
def test_an_archive_of_a_tabular_set_costs_no_more_than_the_set(home, start, zeros, refusal):
    """No checksum of these archives is published: their content may be anything."""
    archive = packed(home / "dataset_location.tgz", start, bytes(zeros + 1024))
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            Location30().load(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.messages == (
        f"{archive}: not unpacked: it holds {refusal}; get it from its official home",
    )
    assert peak < 16 * MIB


def test_names_that_are_not_utf_8_are_names(home):
    pytest.importorskip("torchvision")  # another Python has the small packages alone
    rng = np.random.default_rng(0)
    for label in (b"caf\xe9", b"plain"):
        folder = os.path.join(os.fsencode(home / "mine"), label)
        os.makedirs(folder)
        for i in range(10):
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(
                os.path.join(folder, b"\xff%d.png" % i)
            )
    # the second is from the cache
    data, again = (ImageFolder(path="mine", holdout=2, test=2).load(0) for _ in range(2))
    assert (data.n_classes, data.train_x.shape) == (2, (16, 1, 8, 8)) and np.array_equal(
        data.train_x, again.train_x
    )
