"""Files of a results folder, which may be anybody's: what is read, and what is no file."""

from __future__ import annotations

import hashlib
import os
import socket

import pytest

from fedbench.core.store import files
from fedbench.core.store.files import bytes_of, sha256_of_file


@pytest.mark.parametrize("size", [0, 5, files._SMALL, files._SMALL + 1])
def test_a_file_is_read_whole_and_told_by_its_content(tmp_path, size):
    content = bytes(i % 251 for i in range(size))
    path = tmp_path / "scores.npz"
    path.write_bytes(content)
    assert bytes_of(path, size) == content and sha256_of_file(path) == hashlib.sha256(content).hexdigest()


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 1 << 40)  # takes no room
    with pytest.raises(OverflowError):
        bytes_of(path, 1 << 20)


def test_what_is_no_regular_file_is_none_and_nobody_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    os.mkfifo("pipe")
    os.mkdir("folder")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for name in ("pipe", "folder", "socket"):
            assert bytes_of(tmp_path / name, 9) is None and sha256_of_file(tmp_path / name) == ""
    assert sha256_of_file(tmp_path / "missing") == ""
    with pytest.raises(FileNotFoundError):
        bytes_of(tmp_path / "missing", 9)
