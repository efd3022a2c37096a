"""Downloads, archives, decoded images and their cache."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from archives import image_file, tar_of, zip_of
from PIL import Image

from fedbench.core import UserError
from fedbench.core.toolkit import arrays
from fedbench.core.toolkit.arrays import cached, class_folders, decode_images
from fedbench.core.toolkit.download import Remote, decoded_folder, fetch, unpack

CONTENT = np.random.default_rng(0).integers(0, 256, 700_001, dtype=np.uint8).tobytes()


@pytest.fixture(autouse=True)
def online(home, monkeypatch):
    """Downloads are allowed: from a server of the test's own."""
    monkeypatch.delenv("FEDBENCH_OFFLINE")


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``ranges`` False ignores the Range header; ``short`` drops the connection
    after so many bytes; ``offset`` moves the ranges that it answers with.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {"a.bin": CONTENT}
        self.ranges, self.short = True, len(CONTENT) + 10**8
        self.asked: list[str | None] = []

    def remote(self, *names: str, kind: str | None = "md5") -> Remote:
        """What the authors publish of ``CONTENT``; the server may hold something else."""
        checksum = kind and f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
        urls = tuple(f"http://127.0.0.1:{self.server_port}/{n}" for n in names or ["a.bin"])
        return Remote("a.bin", urls, checksum, len(CONTENT))


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted, content = self.headers.get("Range"), self.server.files.get(self.path[1:])
        self.server.asked.append(wanted)
        if content is None:
            self.send_error(404)
            return
        start = (
            int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        )
        if start >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range",
                f"bytes {start}-{len(content) - 1}/{len(content)}",
            )
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(ConnectionError):  # of a client that has seen enough
                self.wfile.write(content[start : start + self.server.short])

    do_HEAD = do_GET

    def log_message(self, *args) -> None:
        """Quiet."""


@pytest.fixture
def server():
    s = Server()
    thread = threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield s
    s.shutdown()
    s.server_close()
    thread.join()


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != ".lock")


# -- downloads -------------------------------------------------------------------------------------

# the part on disk, the server's state, what it is asked for
ENDS_WELL = {
    "whole": (None, {}, [None]),
    "continued": (CONTENT[:300_000], {}, ["bytes=300000-"]),
    "ranges ignored": (CONTENT[:300_000], {"ranges": False}, ["bytes=300000-"]),
    "connection broken": (None, {"short": 250_000}, [None, "bytes=250000-", "bytes=500000-"]),
    "spoilt part": (bytes(300_000), {}, ["bytes=300000-", None]),
    "complete part": (CONTENT, {}, []),
    "part too long": (CONTENT + b"more", {}, [None]),
}


@pytest.mark.parametrize("name", ENDS_WELL)
def test_a_download_ends_with_the_published_content(server, home, name):
    part, state, asked = ENDS_WELL[name]
    vars(server).update(state)
    if part is not None:
        (home / "a.bin.part").write_bytes(part)
    for _ in range(2):  # the second time it is there
        assert fetch(server.remote(), home).read_bytes() == CONTENT
    assert server.asked == asked and leftovers(home) == ["a.bin"]


# what is on disk, the server's state, the message, what is on disk afterwards
FAILS = {
    "stuck": (
        {},
        {"short": 250_000, "ranges": False},
        "250,000 of 700,001 bytes are kept and the next run",
        ["a.bin.part"],
    ),
    "tampered": (
        {},
        {"files": {"a.bin": CONTENT[:-1] + b"?"}},
        "checksum is md5:.*download http.* and put it at .*a.bin",
        [],
    ),
    "too many bytes": (
        {},
        {"files": {"a.bin": CONTENT + bytes(10**7)}},
        "more than the 700,001 bytes expected",
        [],
    ),
    "a file of the user's": (
        {"a.bin": b"mine"},
        {},
        r"a\.bin: its checksum is md5:.* so it is not used; delete it",
        ["a.bin"],
    ),
    "not there": ({}, {"files": {}}, "HTTPError.*404", []),
}


@pytest.mark.parametrize("name", FAILS)
def test_a_failed_download_says_so_and_leaves_nothing_wrong(server, home, name):
    before, state, told, after = FAILS[name]
    vars(server).update(state)
    for file, content in before.items():
        (home / file).write_bytes(content)
    with pytest.raises(UserError, match=told):
        fetch(server.remote(), home)
    assert leftovers(home) == after and all(
        (home / file).read_bytes() == content for file, content in before.items()
    )


def test_a_mirror_stands_in_and_sha256_is_checked_too(server, home):
    assert fetch(server.remote("gone", "a.bin", kind="sha256"), home).read_bytes() == CONTENT
    assert server.asked == [None, None]


def test_without_a_checksum_an_old_part_is_not_continued(server, home):
    (home / "a.bin.part").write_bytes(b"old")
    assert fetch(server.remote("gone", "a.bin", kind=None), home).read_bytes() == CONTENT


def test_without_a_checksum_a_file_too_large_is_not_taken(server, home):
    server.files["a.bin"] += b"?"
    with pytest.raises(
        UserError, match=r"it announces 700002 bytes, 1 to 700,001 expected.*no published"
    ):
        fetch(server.remote(kind=None), home)
    assert leftovers(home) == []


def test_offline_means_no_request(server, home, monkeypatch):
    monkeypatch.setenv("FEDBENCH_OFFLINE", "1")
    with pytest.raises(UserError, match="FEDBENCH_OFFLINE is set: download http"):
        fetch(server.remote(), home)
    assert server.asked == []


# -- archives --------------------------------------------------------------------------------------


def cut(path: Path, share: float) -> Path:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    return path


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_an_archive_is_unpacked_whole(home, pack):
    (home / ".tmp-unpack-dead" / "x").mkdir(parents=True)  # of a process that was killed
    archive = pack(
        home / "archive", {"top/a.txt": b"a", "./top/deep/b.txt": b"bb", "elsewhere/c": b"c"}
    )
    folder = unpack(archive, home, "top", max_bytes=4, max_files=3)
    assert (folder / "a.txt").read_bytes() == b"a" and (
        folder / "deep" / "b.txt"
    ).read_bytes() == b"bb"
    assert leftovers(home) == ["archive", "top"]  # nothing but the folder asked for
    assert leftovers(folder) == ["a.txt", "deep"]


TWO = {"top/a": bytes(600), "top/b": bytes(400)}
ELSEWHERE = "path that leads elsewhere"
REFUSED = {
    "tar absolute": (lambda p: tar_of(p, {"top/a": b"1", "/abs": b"2"}), {}, ELSEWHERE),
    "tar path": (lambda p: tar_of(p, {"top/a": b"1", "top/../../up": b"2"}), {}, ELSEWHERE),
    "zip path": (lambda p: zip_of(p, {"top/a": b"1", "../up": b"2"}), {}, ELSEWHERE),
    "tar bytes": (lambda p: tar_of(p, TWO), {"max_bytes": 999}, "more than 999 bytes"),
    "files": (lambda p: tar_of(p, TWO), {"max_files": 1}, "more than 1 files"),
    "cut tar": (
        lambda p: cut(tar_of(p, {"top/a": CONTENT}), 0.5),
        {"max_bytes": 10**6},
        "a damaged archive",
    ),
    "cut zip": (
        lambda p: cut(zip_of(p, {"top/a": CONTENT}), 0.5),
        {"max_bytes": 10**6},
        "a damaged archive",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_or_damaged_archive_leaves_nothing(home, name):
    make, bounds, told = REFUSED[name]
    archive = make(home / "archive")
    with pytest.raises(UserError, match=f"archive: .*{told}"):
        unpack(archive, home / "in", "top", **{"max_bytes": 1000} | bounds)
    assert leftovers(home / "in") == [] and leftovers(home) == ["archive", "in"]


# -- images and their cache ------------------------------------------------------------------------


def picture(seed: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Image.Image:
    shape = size[::-1] + ((3,) if mode == "RGB" else ())
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def test_class_folders_are_sorted_and_ignore_what_is_no_image(home):
    for name in (
        "b/1.png",
        "a/0.png",
        "a/.x.png",
        ".hidden/0.png",
        "b/deep/z.JPG",
        "a/notes.txt",
        "readme.txt",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(b"")
    found = class_folders(home)
    assert found.names == ["a", "b"] and found.y.tolist() == [0, 1, 1] and found.y.dtype == np.int64
    assert [Path(f).relative_to(home).as_posix() for f in found.files] == [
        "a/0.png",
        "b/1.png",
        "b/deep/z.JPG",
    ]


def test_images_are_decoded_resized_and_converted(home):
    files = [home / f"{i}.png" for i in range(3)]
    for i, f in enumerate(files):
        picture(i, (7, 5)).save(f)
    plain = np.stack([np.asarray(Image.open(f)) for f in files]).transpose(0, 3, 1, 2)
    assert np.array_equal(decode_images(files), plain)
    assert np.array_equal(
        decode_images(files, channels=1)[0, 0], np.asarray(Image.open(files[0]).convert("L"))
    )
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 200  # the middle third
    Image.fromarray(wide).save(home / "wide.png")
    crop, stretch = (
        decode_images([home / "wide.png"], 10, fit=fit)[0, 0] for fit in ("crop", "stretch")
    )
    assert (
        (crop[:, 1:-1] == 200).all()
        and (stretch[:, [0, -1]] == 0).all()
        and (stretch[:, 5] == 200).all()
    )


ODD = {
    "size": (
        [picture(0), picture(1, (9, 8))],
        r"1\.png: 9x8 pixels, but .*0\.png has 8x8; set 'size'",
    ),
    "mode": (
        [picture(0), picture(1, mode="L")],
        r"1\.png: grey, but .*0\.png is RGB; set 'channels'",
    ),
    "no image": ([b"II*"], r"0\.png: not a readable image .*; replace or remove it"),
    "cut": (
        [image_file(picture(0))[:100]],
        r"0\.png: not a readable image .*; replace or remove it",
    ),
    "pixels": ([picture(0, (21, 20))], "21x20 pixels are too many"),
    "memory": ([picture(0, (20, 20))] * 3, "smaller 'size'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_images_that_are_not_alike_or_too_large_are_refused(home, name, monkeypatch):
    monkeypatch.setattr(arrays, "_MOST_PIXELS", 400)
    monkeypatch.setattr(arrays, "_MOST_BYTES", 3 * 400 * 2)
    pictures, told = ODD[name]
    for i, image in enumerate(pictures):
        (home / f"{i}.png").write_bytes(image if isinstance(image, bytes) else image_file(image))
    with pytest.raises(UserError, match=told):
        decode_images([home / f"{i}.png" for i in range(len(pictures))])


def test_the_cache_answers_for_the_same_sources_only(home, capsys):
    calls: list[int] = []

    def build():
        calls.append(1)
        return {"x": np.arange(20_000, dtype=np.uint8), "y": np.full(3, len(calls))}

    found = [
        int(cached("my set", source, build)["y"][0])
        for source in (["a"], ["a"], ["a", "b"], ["ab"], ["a"])
    ]
    assert found == [1, 1, 2, 3, 1]
    for file in decoded_folder().iterdir():
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    assert [int(cached("my set", ["a"], build)["y"][0]) for _ in range(2)] == [
        4,
        4,
    ] and "is damaged" in capsys.readouterr().err
