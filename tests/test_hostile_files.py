"""Files of others: what a few bytes may cost, what a content may start, names that are no text."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbench.core import UserError, archive_files, check_size, decode_images, unpack
from fedbench.plugins.datasets.image_folder import ImageFolder
from fedbench.plugins.datasets.location30 import Location30

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
0 0 8 8 rectfill
showpage
"""
MIB = 1 << 20


@pytest.mark.parametrize("name", ["a.png", "b.jpg", "c.tif"])
def test_postscript_called_an_image_starts_no_interpreter(tmp_path, monkeypatch, name):
    def started(*args, **kwargs):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", started)
    (tmp_path / name).write_bytes(EPS)
    with pytest.raises(UserError, match=rf"{name}: not a readable image \(UnidentifiedImageError"):
        decode_images([tmp_path / name])


def test_every_suffix_that_is_read_has_its_format(tmp_path):
    from fedbench.core.toolkit.images import SUFFIXES

    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    for suffix in SUFFIXES:
        grey.save(tmp_path / f"x{suffix}")
        assert decode_images([tmp_path / f"x{suffix}"]).shape == (1, 3 if suffix == ".webp" else 1, 8, 8)


def packed(path: Path, *parts: bytes) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as f:
        for part in parts:
            f.write(part)
    return path


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def holes_in_pax() -> bytes:
    """A member whose map of holes would be read from its content: a number of entries, and so many lines."""
    info = tarfile.TarInfo("bangkok")
    info.size = MIB
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "bangkok"}
    return info.tobuf(tarfile.PAX_FORMAT) + b"500000\n" + b"1\n" * (MIB // 2)


HOSTILE = {
    "a long name": (header(tarfile.GNUTYPE_LONGNAME, 64 * MIB) + bytes(64 * MIB), "a header of 67,108,864 bytes"),
    "attributes": (header(tarfile.XHDTYPE, 64 * MIB) + bytes(64 * MIB), "a header of 67,108,864 bytes"),
    "attributes of all": (header(tarfile.XGLTYPE, 64 * MIB) + bytes(64 * MIB), "a header of 67,108,864 bytes"),
    "holes": (header(tarfile.GNUTYPE_SPARSE, 512, "bangkok") + bytes(1024), "a file with holes"),
    "a map of holes": (holes_in_pax(), "a file with holes"),
    "a large file": (header(tarfile.REGTYPE, 10**10, "bangkok") + bytes(1024), "more than 17,955,840 bytes unpacked"),
    "a large neighbour": (header(tarfile.REGTYPE, 10**10, "other") + bytes(1024), "more than 17,955,840 bytes unpacked"),
    "many neighbours": (b"".join(header(tarfile.REGTYPE, 0, f"{i}") for i in range(1001)), "more than 1,000 files"),
}


@pytest.mark.parametrize(("content", "refusal"), HOSTILE.values(), ids=HOSTILE)
def test_an_archive_of_a_tabular_set_costs_no_more_than_the_set(home, content, refusal):
    """No checksum of these archives is published: what they hold is anybody's."""
    archive = packed(home / "dataset_location.tgz", content, bytes(1024))
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            Location30().load(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (message,) = caught.value.messages
    assert message == f"{archive}: not unpacked: it holds {refusal}; get it from its official home"
    assert peak < 16 * MIB


def test_what_unpacks_to_disk_keeps_the_same_bounds(tmp_path):
    archive = packed(tmp_path / "a.tgz", header(tarfile.GNUTYPE_LONGNAME, 64 * MIB), bytes(64 * MIB))
    with pytest.raises(UserError, match="it holds a header of 67,108,864 bytes"):
        unpack(archive, tmp_path / "out", "top", 10**9)


def test_files_of_an_archive_are_read_without_unpacking(tmp_path):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        for name, content in (("d/one", b"1"), ("d/" + "long" * 60, b"22")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    found = {path.name: content.read() for path, content in archive_files(tmp_path / "a.tgz", 3)}
    assert found == {"one": b"1", "long" * 60: b"22"} and sorted(os.listdir(tmp_path)) == ["a.tgz"]


def test_a_file_is_refused_by_its_size_before_it_is_read(tmp_path):
    with open(tmp_path / "big", "wb") as f:
        f.truncate(10**12)  # of holes: it takes no disk
    with pytest.raises(UserError, match="big: 1,000,000,000,000 bytes, at most 300 expected: not this data set"):
        check_size(tmp_path / "big", 300)


def test_names_that_are_not_utf_8_are_names(home):
    """File systems keep bytes; a name from another century is no reason to fail."""
    rng = np.random.default_rng(0)
    for label in (b"caf\xe9", b"plain"):
        folder = os.path.join(os.fsencode(home / "mine"), label)
        os.makedirs(folder)
        for i in range(10):
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(os.path.join(folder, b"\xff%d.png" % i))
    data = ImageFolder(path="mine", holdout=2, test=2).load(0)
    assert (data.n_classes, data.train_x.shape) == (2, (16, 1, 8, 8))
    assert np.array_equal(data.train_x, ImageFolder(path="mine", holdout=2, test=2).load(0).train_x)  # from the cache
