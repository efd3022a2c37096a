"""Image data sets: downloads, archives, caches, decoding, splits, and every way in which data can be bad."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedbench.core import Data, UserError
from fedbench.core.registry.components import Registry
from fedbench.core.toolkit import cache as cache_module
from fedbench.core.toolkit.archive import unpack
from fedbench.core.toolkit.cache import cached
from fedbench.core.toolkit.check import check_data
from fedbench.core.toolkit.download import Remote, fetch
from fedbench.core.toolkit.folders import data_folder, decoded_folder
from fedbench.core.toolkit.images import class_folders, decode_images
from fedbench.plugins.datasets import imageset
from fedbench.plugins.datasets.cifar import Cifar10, Cifar100
from fedbench.plugins.datasets.dermnet import DermNet
from fedbench.plugins.datasets.image_folder import ImageFolder
from fedbench.plugins.datasets.mnist import FashionMnist, Mnist, read_idx
from fedbench.plugins.datasets.splits import Wanted, draw, rng_for, split
from fedbench.plugins.datasets.tiny_imagenet import TinyImageNet

REAL = os.environ.get("FEDBENCH_DATA")
CONTENT = np.random.default_rng(0).integers(0, 256, 700_001, dtype=np.uint8).tobytes()


@pytest.fixture(autouse=True)
def online(home, monkeypatch):
    """Downloads are allowed: from servers of the tests' own."""
    monkeypatch.delenv("FEDBENCH_OFFLINE")


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``ranges`` False ignores the Range header; ``short`` drops the connection after so many bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.ranges, self.short, self.offset = True, None, 0
        self.asked: list[tuple[str, str | None]] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def remote(self, name: str, content: bytes, *names: str, kind: str = "md5") -> Remote:
        """What the authors publish of ``content``; the server may hold something else."""
        urls = tuple(self.url(n) for n in (names or (name,)))
        return Remote(name, urls, f"{kind}:{hashlib.new(kind, content).hexdigest()}", len(content))


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, wanted = self.path[1:], self.headers.get("Range")
        self.server.asked.append((name, wanted))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            first = start + self.server.offset
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content) if self.server.short is None else start + self.server.short
        self.wfile.write(content[start:end])

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


# -- downloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_download_is_verified_and_happens_once(server, tmp_path, kind):
    server.files["a.bin"] = CONTENT
    remote = server.remote("a.bin", CONTENT, kind=kind)
    for _ in range(2):
        assert fetch(remote, tmp_path / "new").read_bytes() == CONTENT
    assert server.asked == [("a.bin", None)] and leftovers(tmp_path / "new") == ["a.bin"]


def test_a_partial_download_continues_where_it_stopped(server, home):
    server.files["a.bin"] = CONTENT
    (home / "a.bin.part").write_bytes(CONTENT[:300_000])
    assert fetch(server.remote("a.bin", CONTENT), home).read_bytes() == CONTENT
    assert server.asked == [("a.bin", "bytes=300000-")] and leftovers(home) == ["a.bin"]


def test_a_server_that_ignores_the_range_starts_again(server, home):
    server.files["a.bin"], server.ranges = CONTENT, False
    (home / "a.bin.part").write_bytes(CONTENT[:300_000])
    assert fetch(server.remote("a.bin", CONTENT), home).read_bytes() == CONTENT
    assert server.asked == [("a.bin", "bytes=300000-")]


def test_broken_connections_are_taken_up_again(server, home):
    server.files["a.bin"], server.short = CONTENT, 250_000
    assert fetch(server.remote("a.bin", CONTENT), home).read_bytes() == CONTENT
    assert [r for _, r in server.asked] == [None, "bytes=250000-", "bytes=500000-"]


def test_a_truncated_download_says_so_and_is_continued_by_the_next_run(server, home):
    server.files["a.bin"], server.short, server.ranges = CONTENT, 250_000, False  # never gets further
    remote = server.remote("a.bin", CONTENT)
    with pytest.raises(UserError, match=r"cannot download a\.bin: .*250,000 of 700,001 bytes are kept and the next run"):
        fetch(remote, home)
    assert leftovers(home) == ["a.bin.part"]
    server.short, server.ranges = None, True
    assert fetch(remote, home).read_bytes() == CONTENT
    assert server.asked[-1] == ("a.bin", "bytes=250000-")


def test_a_spoilt_part_is_thrown_away_and_fetched_again(server, home):
    server.files["a.bin"] = CONTENT
    (home / "a.bin.part").write_bytes(bytes(300_000))
    assert fetch(server.remote("a.bin", CONTENT), home).read_bytes() == CONTENT
    assert [r for _, r in server.asked] == ["bytes=300000-", None]


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more", bytes(len(CONTENT))])
def test_a_part_that_is_complete_too_long_or_wrong_ends_well(server, home, part):
    server.files["a.bin"] = CONTENT
    (home / "a.bin.part").write_bytes(part)
    assert fetch(server.remote("a.bin", CONTENT), home).read_bytes() == CONTENT
    assert len(server.asked) == (0 if part == CONTENT else 1)


def test_another_range_than_asked_for_is_not_appended(server, home):
    server.files["a.bin"], server.offset = CONTENT, 7
    (home / "a.bin.part").write_bytes(CONTENT[:300_000])
    with pytest.raises(UserError, match="another range"):
        fetch(server.remote("a.bin", CONTENT), home)
    assert (home / "a.bin.part").read_bytes() == CONTENT[:300_000]


def test_a_shorter_file_on_the_server_does_not_block_for_ever(server, home):
    server.files["a.bin"] = CONTENT[:1000]
    (home / "a.bin.part").write_bytes(CONTENT[:300_000])
    with pytest.raises(UserError, match="416"):
        fetch(server.remote("a.bin", CONTENT, "a.bin", "a.bin"), home)
    server.files["a.bin"] = CONTENT
    assert fetch(server.remote("a.bin", CONTENT), home).read_bytes() == CONTENT


def test_a_tampered_download_is_deleted(server, home):
    server.files["a.bin"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    remote = server.remote("a.bin", CONTENT)
    with pytest.raises(UserError) as caught:
        fetch(remote, home)
    text = str(caught.value)
    assert "the checksum is md5:" in text and remote.checksum.removeprefix("md5:") in text
    assert remote.urls[0] in text and f"put it at {home / 'a.bin'}" in text
    assert leftovers(home) == []


def test_more_bytes_than_published_are_refused_while_they_come(server, home):
    server.files["a.bin"] = CONTENT + bytes(10_000_000)
    with pytest.raises(UserError, match="more than the 700,001 bytes expected"):
        fetch(server.remote("a.bin", CONTENT), home)
    assert leftovers(home) == []


def test_a_mirror_stands_in_and_every_failure_is_reported(server, home):
    server.files["mirror"] = CONTENT
    assert fetch(server.remote("a.bin", CONTENT, "gone", "mirror"), home).read_bytes() == CONTENT
    with pytest.raises(UserError, match=r"(?s)/gone: HTTPError.*404.*/lost: HTTPError.*404"):
        fetch(server.remote("b.bin", CONTENT, "gone", "lost"), home)


def test_no_server_is_an_error_with_the_way_out(home):
    remote = Remote("a.bin", ("http://127.0.0.1:9/a.bin",), "md5:00", 12_345_678)
    with pytest.raises(UserError, match=r"Or by hand: download http://127.0.0.1:9/a.bin \(12.3 MB, md5 00\) and put it at"):
        fetch(remote, home)


def test_a_wrong_file_of_the_users_is_named_and_left_alone(server, home):
    server.files["a.bin"] = CONTENT
    (home / "a.bin").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"a\.bin: its checksum is md5:.* so it is not used; delete it"):
        fetch(server.remote("a.bin", CONTENT), home)
    assert (home / "a.bin").read_bytes() == b"mine" and server.asked == []


def test_offline_means_no_request(server, home, monkeypatch):
    monkeypatch.setenv("FEDBENCH_OFFLINE", "1")
    server.files["a.bin"] = CONTENT
    with pytest.raises(UserError, match=r"FEDBENCH_OFFLINE is set: download http"):
        fetch(server.remote("a.bin", CONTENT), home)
    assert server.asked == []


def test_a_folder_that_cannot_be_made_is_a_users_error(server, home):
    (home / "file").write_text("")
    with pytest.raises(UserError, match="FEDBENCH_DATA"):
        fetch(server.remote("a.bin", CONTENT), home / "file" / "below")


# -- archives ----------------------------------------------------------------------------------------------------------


def tar_of(path: Path, members: dict[str, bytes | tarfile.TarInfo], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def zip_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in members.items():
            z.writestr(name, content)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_tar_and_zip_unpack_whole(home):
    members = {"top/a.txt": b"a", "./top/deep/b.txt": b"bb", "elsewhere/c": b"c"}
    for i, archive in enumerate((tar_of(home / "a.tar.gz", members), zip_of(home / "a.zip", members))):
        folder = unpack(archive, home / str(i), "top", 10_000)
        assert folder == home / str(i) / "top"
        assert (folder / "a.txt").read_bytes() == b"a" and (folder / "deep" / "b.txt").read_bytes() == b"bb"
        assert leftovers(home / str(i)) == ["top"]  # nothing but the folder asked for


def test_what_is_already_unpacked_stays(home):
    (home / "top").mkdir()
    assert leftovers(unpack(tar_of(home / "a.tar", {"top/a": b"new"}, "w"), home, "top", 100)) == []


@pytest.mark.parametrize("name", ["/abs", "../up", "top/../../up", "top\\..\\up", "C:/x"])
@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_paths_that_lead_elsewhere_are_refused(home, pack, name):
    archive = pack(home / "archive", {"top/fine": b"1", name: b"evil"})
    with pytest.raises(UserError, match="not unpacked: it holds a path that leads elsewhere"):
        unpack(archive, home / "in", "top", 1000)
    assert leftovers(home / "in") == [] and leftovers(home) == ["archive", "in"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(home, kind):
    archive = tar_of(home / "a.tar.gz", {"top/a": b"1", "x": special("top/x", kind, "/etc/passwd")})
    with pytest.raises(UserError, match=r"a link or device: 'top/x'"):
        unpack(archive, home / "in", "top", 1000)
    assert leftovers(home / "in") == []


def test_a_link_in_a_zip_is_refused(home):
    link = zipfile.ZipInfo("top/x")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(home / "a.zip", "w") as z:
        z.writestr(link, "/etc/passwd")
    with pytest.raises(UserError, match=r"a link or device: 'top/x'"):
        unpack(home / "a.zip", home / "in", "top", 1000)


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_sizes_are_bounded_and_exact(home, pack):
    archive = pack(home / "archive", {"top/a": bytes(600), "top/b": bytes(400)})
    assert unpack(archive, home / "in", "top", 1000).is_dir()
    for bound, text in ({"max_bytes": 999}, "more than 999 bytes"), ({"max_bytes": 1000, "max_files": 1}, "more than 1 files"):
        with pytest.raises(UserError, match=text):
            unpack(archive, home / "out", "top", **bound)
    assert leftovers(home / "out") == []


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_archive_leaves_nothing(home, pack, keep):
    archive = pack(home / "archive", {"top/a": CONTENT[:50_000], "top/b": CONTENT[50_000:90_000]})
    archive.write_bytes(archive.read_bytes()[: int(keep * archive.stat().st_size)])
    with pytest.raises(UserError, match=r"archive: (a damaged archive|holds no folder)"):
        unpack(archive, home / "in", "top", 10**6)
    assert leftovers(home / "in") == []


@pytest.mark.parametrize("members", [{"other/a": b"1"}, {"top/a": b"1", "top/a/b": b"2"}])
def test_odd_contents_are_named(home, members):
    with pytest.raises(UserError, match=r"holds no folder 'top'|damaged archive"):
        unpack(tar_of(home / "a.tar.gz", members), home / "in", "top", 100)


def test_what_a_killed_process_left_is_swept(home):
    (home / ".tmp-unpack-dead" / "x").mkdir(parents=True)
    unpack(tar_of(home / "a.tar.gz", {"top/a": b"1"}), home, "top", 100)
    assert leftovers(home) == ["a.tar.gz", "top"]


# -- the cache ---------------------------------------------------------------------------------------------------------


def counting(calls: list[int]):
    def build():
        calls.append(1)
        return {"x": np.arange(20_000, dtype=np.uint8).reshape(-1, 4), "y": np.arange(3)}

    return build


def test_the_cache_answers_for_the_same_sources_only(home):
    calls: list[int] = []
    for source, built in ((["a"], 1), (["a"], 1), (["a", "b"], 2), (["ab"], 3), (["a"], 3)):
        arrays = cached("my set", source, counting(calls))
        assert len(calls) == built and arrays["x"].dtype == np.uint8 and arrays["x"].shape == (5000, 4)
    assert all(f.name.startswith("my-set-") and f.suffix == ".npz" for f in decoded_folder().iterdir())


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_cache_is_decoded_again(home, capsys, damage):
    calls: list[int] = []
    first = cached("set", ["a"], counting(calls))
    (file,) = decoded_folder().iterdir()
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes({"flip": bytes(raw), "cut": bytes(raw[:100]), "empty": b""}[damage])
    again = cached("set", ["a"], counting(calls))
    assert len(calls) == 2 and np.array_equal(again["x"], first["x"]) and "is damaged" in capsys.readouterr().err
    assert cached("set", ["a"], counting(calls)) and len(calls) == 2  # mended


def test_a_cache_that_cannot_be_written_costs_a_warning(home, capsys):
    decoded_folder().write_text("a file where the folder should be")
    assert cached("set", ["a"], counting([]))["y"].tolist() == [0, 1, 2]
    assert "the next run decodes again" in capsys.readouterr().err


def test_a_failure_while_storing_leaves_no_file(home, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.np, "savez", full)
    cached("set", ["a"], counting([]))
    assert list(decoded_folder().iterdir()) == []


def test_the_data_folder(monkeypatch):
    monkeypatch.setenv("FEDBENCH_DATA", "~/d")
    assert data_folder() == Path.home() / "d"
    monkeypatch.delenv("FEDBENCH_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert data_folder() == Path("/x/fedbench")


# -- decoding ----------------------------------------------------------------------------------------------------------


def picture(seed: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Image.Image:
    shape = size[::-1] + ((len(mode),) if len(mode) > 1 else ())
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), mode if mode == "CMYK" else None)


def folders(root: Path, counts: dict[str, int], start: int = 0, **kind) -> Path:
    """``root/<class>/<i>.png``; every picture is another one."""
    for c, (name, n) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            picture(start + 1000 * c + i, **kind).save(root / name / f"{i:03}.png")
    return root


def test_class_folders_are_sorted_and_ignore_what_is_no_image(home):
    root = folders(home / "set", {"b": 2, "a": 3})
    (root / ".hidden").mkdir()
    (root / "readme.txt").write_text("")
    (root / "a" / "notes.txt").write_text("")
    (root / "a" / ".x.png").write_text("")
    (root / "b" / "deep").mkdir()
    picture(7).save(root / "b" / "deep" / "z.JPG")
    found = class_folders(root)
    assert found.names == ["a", "b"] and found.y.tolist() == [0, 0, 0, 1, 1, 1] and found.y.dtype == np.int64
    assert [Path(f).relative_to(root).as_posix() for f in found.files] == [
        "a/000.png", "a/001.png", "a/002.png", "b/000.png", "b/001.png", "b/deep/z.JPG",
    ]  # fmt: skip


def test_decoding_equals_the_plain_way(home):
    files = [str(home / f"{i}.png") for i in range(3)]
    for i, f in enumerate(files):
        picture(i, (7, 5)).save(f)
    x = decode_images(files)
    slow = np.stack([np.asarray(Image.open(f)) for f in files]).transpose(0, 3, 1, 2)
    assert x.dtype == np.uint8 and x.shape == (3, 3, 5, 7) and x.flags.c_contiguous and np.array_equal(x, slow)
    grey = decode_images(files, channels=1)
    assert np.array_equal(grey[0, 0], np.asarray(Image.open(files[0]).convert("L")))


def test_resizing_stretches_or_crops_the_middle(home):
    a = np.zeros((20, 60, 3), np.uint8)
    a[:, 20:40] = 200  # the middle third
    Image.fromarray(a).save(home / "a.png")
    crop, stretch = (decode_images([home / "a.png"], 10, fit=fit)[0, 0] for fit in ("crop", "stretch"))
    assert (crop[:, 1:-1] == 200).all() and (crop > 100).all()  # the filter reaches beyond the cut
    assert (stretch[:, 0] == 0).all() and (stretch[:, 5] == 200).all() and (stretch[:, -1] == 0).all()


def test_a_large_jpeg_is_reduced_to_nearly_what_full_decoding_gives(home):
    y, x = np.mgrid[0:400, 0:600]
    a = np.stack([x * 255 // 599, y * 255 // 399, (x + y) * 255 // 998], -1).astype(np.uint8)
    Image.fromarray(a).save(home / "a.jpg", quality=95)
    got = decode_images([home / "a.jpg"], 32)[0].astype(int)
    full = np.asarray(Image.open(home / "a.jpg").resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(got - full).max() <= 6


@pytest.mark.filterwarnings("ignore:Truncated File Read")  # the TIFF reader says so twice
@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "webp"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5])
def test_a_truncated_image_is_named(home, suffix, keep):
    good, bad = home / f"good.{suffix}", home / f"bad.{suffix}"
    picture(0, (40, 40)).save(good)
    bad.write_bytes(good.read_bytes()[: int(keep * good.stat().st_size)])
    with pytest.raises(UserError, match=rf"bad\.{suffix}: not a readable image .*; replace or remove it") as caught:
        decode_images([good, bad, good])
    assert "good" not in str(caught.value)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_image_is_a_users_error_or_an_image(tmp_path_factory, data):
    kind = data.draw(st.sampled_from(["png", "jpeg", "bmp", "tiff", "webp", "ppm"]))
    buffer = io.BytesIO()
    picture(0, (24, 24)).save(buffer, kind)
    raw = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, min(len(raw), 300) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("fuzz") / f"a.{kind}"
    file.write_bytes(bytes(raw))
    try:
        x = decode_images([file], 8, 3)
    except UserError as error:
        assert str(file) in str(error)
    else:
        assert x.shape == (1, 3, 8, 8)


def test_all_bad_images_are_reported_at_once_up_to_ten(home):
    files = [home / f"{i}.png" for i in range(30)]
    for f in files:
        f.write_bytes(b"no image")
    with pytest.raises(UserError) as caught:
        decode_images(files)
    assert [m.split(":")[0] for m in caught.value.messages] == [str(f) for f in files[:10]]


def test_mixed_sizes_need_a_size(home):
    picture(0, (8, 8)).save(home / "a.png")
    picture(1, (9, 8)).save(home / "b.png")
    with pytest.raises(UserError, match=r"b\.png: 9x8 pixels, but .*a\.png has 8x8; set 'size'"):
        decode_images([home / "a.png", home / "b.png"])
    assert decode_images([home / "a.png", home / "b.png"], size=8).shape == (2, 3, 8, 8)


def test_mixed_modes_need_channels(home):
    picture(0).save(home / "a.png")
    picture(1, mode="L").save(home / "b.png")
    with pytest.raises(UserError, match=r"b\.png: grey, but .*a\.png is RGB; set 'channels'"):
        decode_images([home / "a.png", home / "b.png"])
    x = decode_images([home / "a.png", home / "b.png"], channels=3)
    assert x.shape == (2, 3, 8, 8) and (x[1, 0] == x[1, 2]).all()


def test_odd_modes_are_named(home):
    picture(0).convert("P").save(home / "p.png")
    with pytest.raises(UserError, match=r"p\.png: neither grey nor RGB \(mode P\); set 'channels'"):
        decode_images([home / "p.png"])
    assert decode_images([home / "p.png"], channels=3).shape == (1, 3, 8, 8)
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(home / "deep.png")
    with pytest.raises(UserError, match=r"deep\.png: more than 8 bits a channel"):
        decode_images([home / "deep.png"], channels=1)


def test_too_many_pixels_are_refused(home, monkeypatch):
    from fedbench.core.toolkit import images

    picture(0, (20, 20)).save(home / "a.png")
    monkeypatch.setattr(images, "_MOST_PIXELS", 399)
    with pytest.raises(UserError, match="20x20 pixels are too many"):
        decode_images([home / "a.png"])
    monkeypatch.setattr(images, "_MOST_PIXELS", 400)
    monkeypatch.setattr(images, "_MOST_BYTES", 3 * 400 * 2 - 1)
    with pytest.raises(UserError, match="smaller 'size'"):
        decode_images([home / "a.png"] * 2)


# -- splits ------------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 5), share=st.floats(0, 1), counts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_draw_is_exact_and_every_class_keeps_its_share(seed, share, counts):
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    pool = np.arange(len(y))[:: 2 if len(y) > 9 else 1]
    n = round(share * len(pool))
    got = draw(pool, y, n, rng_for(seed, "t"))
    assert len(got) == n == len(np.unique(got)) and np.isin(got, pool).all() and (np.diff(got) > 0).all()
    for c in range(len(counts)):
        assert abs((y[got] == c).sum() - n * (y[pool] == c).sum() / len(pool)) < 1


@given(
    seed=st.integers(0, 5), own_test=st.booleans(), train=st.none() | st.integers(10, 60), test=st.none() | st.integers(1, 60),
    holdout=st.integers(1, 40),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_splits_are_disjoint_and_the_holdout_does_not_depend_on_train(seed, own_test, train, test, holdout):
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(5), 40))
    test_y = np.repeat(np.arange(5), 30) if own_test else None
    want = Wanted(train, test, holdout)
    a, b, c = (split(y, test_y, w, seed, "set") for w in (want, want, Wanted(12, test, holdout)))
    whole = np.arange(len(y))
    used = [whole if a.train is None else a.train, a.test, a.holdout]
    if own_test:
        assert not np.isin(a.test, a.holdout).any() and len(used[0]) == (train or 200)
    else:
        assert len(np.unique(np.concatenate(used))) == sum(map(len, used))
    assert len(a.holdout) == holdout and len(a.test) == (test or (150 - holdout if own_test else 40))
    assert np.array_equal(a.holdout, c.holdout) and np.array_equal(a.test, c.test)
    for part in ("train", "test", "holdout"):
        assert np.array_equal(getattr(a, part), getattr(b, part))
    if holdout >= 5:  # of fewer, another seed may draw the same
        assert not np.array_equal(a.holdout, split(y, test_y, want, seed + 1, "set").holdout)


def test_more_images_than_there_are_is_an_error():
    y = np.repeat(np.arange(4), 10)
    with pytest.raises(UserError, match="set has 40 training images, 41 asked for"):
        split(y, y, Wanted(41, None, 4), 0, "set")
    with pytest.raises(UserError, match=r"set has 40 test images: a hold-out of 4 \(holdout\) and 37 to test"):
        split(y, y, Wanted(None, 37, 4), 0, "set")
    with pytest.raises(UserError, match=r"a hold-out of 40 \(holdout\) and 0 to test"):
        split(y, y, Wanted(None, None, 40), 0, "set")
    with pytest.raises(UserError, match="set has 22 training images, 23 asked for"):
        split(y, None, Wanted(23, 10, 8), 0, "set")
    with pytest.raises(UserError, match="with 3 training images 1 of 4 classes have none"):
        split(y, y, Wanted(3, None, 4), 0, "set")
    with pytest.raises(UserError, match=r"set has 40 images: a hold-out of 24 \(holdout\) and 24 to test"):
        split(y, None, Wanted(None, 0.6, 0.6), 0, "set")


# -- CIFAR -------------------------------------------------------------------------------------------------------------


def cifar_files(n_classes: int, per_file: int, names: list[str], label_bytes: int) -> dict[str, bytes]:
    """Records with the class as the last label byte; a coarse label of 99 - class precedes it where there are two."""
    rng = np.random.default_rng(0)
    out = {}
    for name in names:
        y = rng.permutation(np.arange(per_file) % n_classes).astype(np.uint8)
        labels = np.stack([99 - y, y], 1)[:, -label_bytes:]
        out[name] = np.concatenate([labels, rng.integers(0, 256, (per_file, 3072), dtype=np.uint8)], 1).tobytes()
    return out


CIFAR10 = cifar_files(10, 40, [*Cifar10.train_files, Cifar10.test_file], 1)


@pytest.fixture
def cifar10(server, home, monkeypatch):
    """The official archive, small, at home on the test's own server."""
    archive = tar_of(home.parent / "c.tar.gz", {f"{Cifar10.folder}/{n}": c for n, c in CIFAR10.items()}).read_bytes()
    server.files[Cifar10.remote.name] = archive
    monkeypatch.setattr(Cifar10, "remote", server.remote(Cifar10.remote.name, archive))
    monkeypatch.setattr(Cifar10, "expected", (200, 40))
    return Cifar10


def test_cifar10_is_downloaded_once_decoded_once_and_split(cifar10, server, home):
    assert cifar10.here() is False
    data = cifar10(holdout=10, label_noise=0.25).load(0)
    assert data.train_x.shape == (200, 3, 32, 32) and data.train_x.dtype == np.uint8 and data.n_classes == 10
    assert (len(data.test_y), len(data.holdout_y)) == (30, 10) and data.train_y.dtype == np.int64
    assert check_data(data, "cifar10") is data
    records = np.frombuffer(b"".join(CIFAR10[n] for n in Cifar10.train_files), np.uint8).reshape(200, -1)
    assert np.array_equal(data.train_x.reshape(200, -1), records[:, 1:])
    assert np.array_equal(data.train_y != records[:, 0], data.train_canary) and data.train_canary.sum() == 50
    assert data.holdout_canary.sum() == 2
    official = {r[1:].tobytes(): r[0] for r in np.frombuffer(CIFAR10[Cifar10.test_file], np.uint8).reshape(40, -1)}
    assert [official[x.tobytes()] for x in data.test_x] == data.test_y.tolist()  # the test set is never mislabelled
    assert {x.tobytes() for x in data.test_x} | {x.tobytes() for x in data.holdout_x} == official.keys()
    assert np.array_equal(np.bincount(data.test_y), [3] * 10)  # each class keeps its share
    again = cifar10(holdout=10, label_noise=0.25).load(0)
    assert again.digest() == data.digest() != cifar10(holdout=10, label_noise=0.25).load(1).digest()
    assert len(server.asked) == 1 and cifar10.here() == str(home / Cifar10.folder)
    assert len(list(decoded_folder().iterdir())) == 1


def test_cifar10_draws_fewer_by_seed(cifar10):
    data, other = (cifar10(train=50, test=20, holdout=10).load(s) for s in (0, 1))
    assert np.array_equal(np.bincount(data.train_y), [5] * 10) and len(data.test_y) == 20
    assert not np.array_equal(data.train_x, other.train_x)
    assert not {x.tobytes() for x in data.test_x} & {x.tobytes() for x in data.holdout_x}
    with pytest.raises(UserError, match="cifar10 has 200 training images, 201 asked for"):
        cifar10(train=201, holdout=10).load(0)


def test_a_tampered_archive_is_never_unpacked(cifar10, server, home):
    evil = tar_of(home.parent / "evil.tar.gz", {f"{Cifar10.folder}/{n}": c[::-1] for n, c in CIFAR10.items()}).read_bytes()
    size = Cifar10.remote.size
    server.files[Cifar10.remote.name] = (evil + bytes(size))[:size]
    for by_hand in (False, True):
        if by_hand:
            (home / Cifar10.remote.name).write_bytes(server.files[Cifar10.remote.name])
        with pytest.raises(UserError, match="checksum") as caught:
            cifar10(holdout=10).load(0)
        assert "python version is a pickle" in str(caught.value) and "class folders in" in str(caught.value)
        assert not (home / Cifar10.folder).exists() and not decoded_folder().exists()


def test_missing_cifar_says_what_from_where_and_where_to(home, monkeypatch):
    monkeypatch.setenv("FEDBENCH_OFFLINE", "1")
    for cls, md5 in ((Cifar10, "c32a1d4ab5d03f1284b67883e8d87530"), (Cifar100, "03b5dce01913d631647c71ecec9e9cb8")):
        with pytest.raises(UserError) as caught:
            cls().load(0)
        (text,) = caught.value.messages
        assert cls.remote.urls[0] in text and "www.cs.toronto.edu" in text and md5 in text
        assert f"put it at {home / cls.remote.name}" in text and f"{home / cls.name}/{{train,test}}/<class>" in text


@pytest.mark.parametrize(("damage", "text"), [
    (lambda raw: raw[:-1], r"data_batch_2\.bin: .*truncated; delete"),
    (lambda raw: raw[:-3073], r"199 \+ 40 images .*cifar10 has 200 \+ 40"),
    (lambda raw: b"", r"data_batch_2\.bin: 0 bytes .*truncated"),
    (lambda raw: bytes([10]) + raw[1:], r"data_batch_2\.bin: 1 labels are not 0\.\.9 \(the first: 10 at position 0\)"),
])  # fmt: skip
def test_a_damaged_cifar_file_is_named(cifar10, home, damage, text):
    cifar10(holdout=10).load(0)
    file = home / Cifar10.folder / "data_batch_2.bin"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=text):
        cifar10(holdout=10).load(0)
    file.unlink()
    with pytest.raises(UserError, match=r"data_batch_2\.bin is missing: delete"):
        cifar10(holdout=10).load(0)


def test_cifar100_takes_the_fine_label_and_fedmias_constants_by_name(home, monkeypatch):
    monkeypatch.setattr(Cifar100, "expected", (200, 200))
    (home / Cifar100.folder).mkdir()
    for name, content in cifar_files(100, 200, ["train.bin", "test.bin"], 2).items():
        (home / Cifar100.folder / name).write_bytes(content)
    data = Cifar100(holdout=100).load(0)
    raw = np.fromfile(home / Cifar100.folder / "train.bin", np.uint8).reshape(200, -1)
    assert np.array_equal(data.train_y, raw[:, 1]) and data.n_classes == 100
    assert data.mean == (0.5071, 0.4865, 0.4409)
    fedmia = Cifar100(holdout=100, normalise="fedmia").load(0)
    assert (fedmia.mean, fedmia.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert Cifar100(holdout=100, normalise="half").load(0).std == (0.5, 0.5, 0.5)


def test_cifar10_as_class_folders(home, monkeypatch):
    monkeypatch.setattr(Cifar10, "expected", (30, 20))
    for part, n, start in (("train", 3, 0), ("test", 2, 50_000)):
        folders(home / "cifar10" / part, {f"c{i}": n for i in range(10)}, start, size=(32, 32))
    data = Cifar10(holdout=10).load(0)
    assert data.train_x.shape == (30, 3, 32, 32) and data.train_y.tolist() == np.repeat(np.arange(10), 3).tolist()
    assert np.array_equal(data.train_x[4], np.asarray(Image.open(home / "cifar10/train/c1/001.png")).transpose(2, 0, 1))
    assert Cifar10.here() == str(home / "cifar10" / "train")
    (home / "cifar10/train/c1/001.png").unlink()
    with pytest.raises(UserError, match=r"29 \+ 20 images .*has 30 \+ 20: .*image-folder"):
        Cifar10(holdout=10).load(0)
    folders(home / "cifar10" / "train", {"extra": 2}, size=(32, 32))
    with pytest.raises(UserError, match="11 class folders, cifar10 has 10"):
        Cifar10(holdout=10).load(0)


# -- MNIST -------------------------------------------------------------------------------------------------------------


def idx(a: np.ndarray) -> bytes:
    return bytes((0, 0, 8, a.ndim)) + np.array(a.shape, ">u4").tobytes() + a.astype(np.uint8).tobytes()


MNIST = {
    f"{part}-{kind}-ubyte": idx(a)
    for part, n in (("train", 60), ("t10k", 40))
    for kind, a in (
        ("images-idx3", np.random.default_rng(n).integers(0, 256, (n, 28, 28))), ("labels-idx1", np.arange(n) % 10),
    )
}  # fmt: skip


@pytest.fixture(params=[Mnist, FashionMnist])
def mnist(request, server, home, monkeypatch):
    cls = request.param
    packed = {f"{name}.gz": gzip.compress(content) for name, content in MNIST.items()}
    server.files.update(packed)
    monkeypatch.setattr(cls, "mirrors", (f"http://127.0.0.1:{server.server_port}",))
    monkeypatch.setattr(cls, "packed", tuple((hashlib.md5(c).hexdigest(), len(c)) for c in packed.values()))
    monkeypatch.setattr(cls, "expected", (60, 40))
    return cls


def test_mnist_is_downloaded_and_read(mnist, server, home):
    assert mnist.here() is False
    data = mnist(holdout=10).load(0)
    assert data.train_x.shape == (60, 1, 28, 28) and data.train_x.dtype == np.uint8 and data.n_classes == 10
    assert np.array_equal(data.train_y, np.arange(60) % 10) and (len(data.test_y), len(data.holdout_y)) == (30, 10)
    assert np.array_equal(data.train_x[:, 0].ravel(), np.frombuffer(MNIST["train-images-idx3-ubyte"][16:], np.uint8))
    assert len(server.asked) == 4 and mnist.here() == str(home / mnist.folder)
    mnist(holdout=10).load(1)
    assert len(server.asked) == 4
    assert check_data(data, "mnist").mean == mnist.own[0]


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_mnist_file_is_named(mnist, home, packed):
    folder = home / mnist.folder
    folder.mkdir(parents=True)
    for name, content in MNIST.items():
        (folder / name).write_bytes(content)
    bad = folder / "train-labels-idx1-ubyte"
    for content, text in (
        (MNIST[bad.name][:-1], "truncated; delete it"),
        (b"", "truncated; delete it"),
        (b"\0\0\x08\xff", "truncated; delete it"),
        (b"\0\0\x0d" + MNIST[bad.name][3:], "not a whole idx file of bytes"),
        (idx(np.arange(60)), r"labels are not 0\.\.9 \(the first: 10 at position 10\)"),
        (idx(np.arange(59) % 10), "delete both"),
        (MNIST["train-images-idx3-ubyte"], "delete both"),
    ):
        bad.write_bytes(content)
        with pytest.raises(UserError, match=rf"train-labels-idx1-ubyte: .*{text}"):
            mnist(holdout=10).load(0)
    if packed:
        bad.unlink()
        bad.with_name(bad.name + ".gz").write_bytes(gzip.compress(MNIST[bad.name])[:-9])
        with pytest.raises(UserError, match=r"ubyte\.gz: its checksum is .*so it is not used"):
            mnist(holdout=10).load(0)


def test_a_broken_gz_is_a_users_error(home):
    file = home / "a.gz"
    for content in (gzip.compress(CONTENT)[:-100], b"no gzip", gzip.compress(CONTENT[:999])[:-3] + b"abc"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.gz: cannot be read .*delete it"):
            read_idx(file)


# -- Tiny ImageNet -----------------------------------------------------------------------------------------------------

WNIDS = ["n03", "n01", "n02"]


def tiny_members() -> dict[str, bytes]:
    def jpeg(seed: int, mode: str = "RGB") -> bytes:
        buffer = io.BytesIO()
        picture(seed, (64, 64), mode).save(buffer, "JPEG")
        return buffer.getvalue()

    top = "tiny-imagenet-200"
    members = {f"{top}/wnids.txt": "\n".join(WNIDS).encode()}
    for c, wnid in enumerate(WNIDS):
        members[f"{top}/train/{wnid}/{wnid}_boxes.txt"] = b"x"
        members |= {
            f"{top}/train/{wnid}/images/{wnid}_{i}.JPEG": jpeg(10 * c + i, "L" if i == 1 else "RGB") for i in range(4)
        }
    members |= {f"{top}/val/images/val_{i}.JPEG": jpeg(100 + i) for i in range(6)}
    members[f"{top}/val/val_annotations.txt"] = "".join(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t9\t9\n" for i in range(6)).encode()
    members[f"{top}/test/images/test_0.JPEG"] = jpeg(200)
    return members


@pytest.fixture
def tiny(server, home, monkeypatch):
    archive = zip_of(home.parent / "t.zip", tiny_members()).read_bytes()
    server.files[TinyImageNet.remote.name] = archive
    monkeypatch.setattr(TinyImageNet, "remote", server.remote(TinyImageNet.remote.name, archive))
    monkeypatch.setattr(TinyImageNet, "expected", (12, 6))
    monkeypatch.setattr(TinyImageNet, "n_classes", 3)
    return TinyImageNet


def test_tiny_imagenet_resumes_unpacks_and_labels_the_validation_set(tiny, server, home):
    whole = server.files[tiny.remote.name]
    (home / f"{tiny.remote.name}.part").write_bytes(whole[:5000])
    data = tiny(holdout=3).load(0)
    assert server.asked == [(tiny.remote.name, "bytes=5000-")]
    assert data.train_x.shape == (12, 3, 64, 64) and data.n_classes == 3
    assert data.train_y.tolist() == np.repeat(np.arange(3), 4).tolist()  # classes in sorted order, not wnids.txt's
    folder = home / "tiny-imagenet-200"
    assert np.array_equal(data.train_x[0], np.asarray(Image.open(folder / "train/n01/images/n01_0.JPEG")).transpose(2, 0, 1))
    val = [np.asarray(Image.open(folder / f"val/images/val_{i}.JPEG")).transpose(2, 0, 1) for i in range(6)]
    label = {x.tobytes(): sorted(WNIDS).index(WNIDS[i % 3]) for i, x in enumerate(val)}
    got = {x.tobytes(): y for x, y in zip((*data.test_x, *data.holdout_x), (*data.test_y, *data.holdout_y), strict=True)}
    assert got == label
    pixels = data.train_x.astype(np.float64) / 255
    assert np.allclose(data.mean, pixels.mean((0, 2, 3)), atol=6e-5) and np.allclose(data.std, pixels.std((0, 2, 3)), atol=6e-5)


def test_tiny_imagenet_with_its_validation_set_in_class_folders(tiny, home):
    plain = tiny(holdout=3).load(0)
    val = home / "tiny-imagenet-200" / "val"
    for i in range(6):
        to = val / WNIDS[i % 3] / "images"
        to.mkdir(parents=True, exist_ok=True)
        (val / "images" / f"val_{i}.JPEG").rename(to / f"val_{i}.JPEG")
    (val / "images").rmdir()
    sorted_ = tiny(holdout=3).load(0)
    assert {(x.tobytes(), int(y)) for x, y in zip(plain.test_x, plain.test_y, strict=True)} <= {
        (x.tobytes(), int(y))
        for xs, ys in ((sorted_.test_x, sorted_.test_y), (sorted_.holdout_x, sorted_.holdout_y))
        for x, y in zip(xs, ys, strict=True)
    }


@pytest.mark.parametrize("line", ["val_0.JPEG\tn99\t0", "nothing.JPEG\tn01\t0", "../x\tn01", "", "val_0.JPEG"])
def test_a_bad_annotation_is_named_by_its_line(tiny, home, line):
    tiny(holdout=3).load(0)
    table = home / "tiny-imagenet-200/val/val_annotations.txt"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:2], line, *lines[3:]]))
    with pytest.raises(UserError, match=r"val_annotations\.txt:3: no class folder"):
        tiny(holdout=3).load(0)


def test_changed_annotations_are_not_answered_from_the_cache(tiny, home):
    before = tiny(holdout=3).load(0)
    table = home / "tiny-imagenet-200/val/val_annotations.txt"
    table.write_text("".join(f"val_{i}.JPEG\t{WNIDS[(i + 1) % 3]}\t0\n" for i in range(6)))
    assert tiny(holdout=3).load(0).digest() != before.digest()


def test_incomplete_tiny_imagenet_is_refused(tiny, home):
    tiny(holdout=3).load(0)
    folder = home / "tiny-imagenet-200"
    (folder / "train/n01/images/n01_0.JPEG").unlink()
    with pytest.raises(UserError, match=r"11 \+ 6 images"):
        tiny(holdout=3).load(0)
    folders(folder / "train", {"n04": 2})
    with pytest.raises(UserError, match=r"4 class folders, tiny-imagenet has 3; delete"):
        tiny(holdout=3).load(0)


# -- DermNet, image-folder ---------------------------------------------------------------------------------------------


def test_missing_dermnet_says_what_to_get_and_where_to_put_it(home):
    with pytest.raises(UserError) as caught:
        DermNet().load(0)
    (text,) = caught.value.messages
    assert DermNet.home in text and f"{home}/dermnet/train/<class>/*.jpg" in text and "23 classes" in text
    assert DermNet.here() is False


def test_dermnet_crops_to_64(home):
    names = {f"skin {i:02}": 2 for i in range(23)}
    for part, start in (("train", 0), ("test", 50_000)):
        folders(home / "dermnet" / part, names, start, size=(80, 66))
    data = DermNet(holdout=23).load(0)
    assert data.train_x.shape == (46, 3, 64, 64) and data.n_classes == 23 and np.bincount(data.holdout_y).tolist() == [1] * 23
    assert check_data(data, "dermnet").std is not None and DermNet.here() == str(home / "dermnet" / "train")
    (home / "dermnet/train/skin 00").rename(home / "dermnet/train/.skin 00")
    with pytest.raises(UserError, match="22 class folders, dermnet has 23"):
        DermNet(holdout=23).load(0)


def test_a_flat_folder_is_split_by_seed(home):
    folders(home / "mine", {"a": 30, "b": 20, "c": 10})
    data, again, other = (ImageFolder(path="mine", label_noise=0.5).load(s) for s in (0, 0, 1))
    assert (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (42, 12, 6)
    assert data.digest() == again.digest() != other.digest()
    assert len({x.tobytes() for s in (data.train_x, data.test_x, data.holdout_x) for x in s}) == 60  # no image twice
    assert data.train_canary.sum() == 21 and data.holdout_canary.sum() == 3
    clean = ImageFolder(path=str(home / "mine")).load(0)
    assert np.bincount(clean.train_y).tolist() == [21, 14, 7] and np.bincount(clean.test_y).tolist() == [6, 4, 2]
    assert np.array_equal(clean.test_y, data.test_y) and np.array_equal(clean.train_y != data.train_y, data.train_canary)


@pytest.mark.parametrize("name", ["test", "val"])
def test_train_and_test_folders_are_kept_apart(home, name):
    folders(home / "mine" / "train", {"a": 5, "b": 5, "c": 4})
    folders(home / "mine" / name, {"a": 10, "c": 10}, 500)
    data = ImageFolder(path="mine", holdout=0.2, train=9).load(0)
    assert (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (9, 16, 4) and data.n_classes == 3
    assert set(data.test_y) == set(data.holdout_y) == {0, 2}
    trained = {np.asarray(Image.open(f)).transpose(2, 0, 1).tobytes() for f in (home / "mine/train").rglob("*.png")}
    assert {x.tobytes() for x in data.train_x} <= trained and not {x.tobytes() for x in data.test_x} & trained


def test_image_folder_sizes_channels_and_normalisation(home):
    folders(home / "mine", {"a": 5, "b": 5}, size=(10, 6))
    grey = ImageFolder(path="mine", size=8, channels=1, normalise="half").load(0)
    assert grey.train_x.shape[1:] == (1, 8, 8) and (grey.mean, grey.std) == ((0.5,), (0.5,))
    assert ImageFolder(path="mine").load(0).train_x.shape[1:] == (3, 6, 10)
    assert ImageFolder(path="mine", normalise="imagenet").load(0).mean == (0.485, 0.456, 0.406)
    with pytest.raises(UserError, match="normalise: imagenet needs colour images"):
        ImageFolder(path="mine", channels=1, normalise="imagenet").load(0)
    crop, stretch = (ImageFolder(path="mine", size=8, fit=fit).load(0) for fit in ("crop", "stretch"))
    assert crop.digest() != stretch.digest()


def test_image_folder_decodes_once(home, monkeypatch):
    folders(home / "mine", {"a": 5, "b": 5})
    calls = []
    decode = imageset.decode_images
    monkeypatch.setattr(imageset, "decode_images", lambda *a, **k: calls.append(1) or decode(*a, **k))
    for _ in range(2):
        ImageFolder(path="mine").load(0)
    assert len(calls) == 1
    ImageFolder(path="mine", size=16).load(0)
    assert len(calls) == 2
    picture(77).save(home / "mine/a/new.png")
    assert len(calls) == 2 and len(ImageFolder(path="mine").load(0).train_y) == 8 and len(calls) == 3


@pytest.mark.parametrize(("make", "text"), [
    (lambda r: None, r"mine is not a folder; put the images at"),
    (lambda r: r.mkdir(), r"mine: no class folders; expected"),
    (lambda r: folders(r, {"a": 5, "b": 0}), r"mine/b: no image, at least 2 needed.*\.png"),
    (lambda r: folders(r, {"a": 5, "b": 1}), r"mine/b: a single image, at least 2 needed; add images or remove the class"),
    (lambda r: folders(r / "train", {"a": 5, "b": 5}), r"mine: a folder 'train' but no 'test'"),
    (lambda r: (folders(r / "train", {"a": 5, "b": 5}), folders(r / "test", {"a": 5, "z": 5})), r"test/z: a class that the"),
    (lambda r: (folders(r / "train", {"a": 5, "b": 5}), folders(r / "test", {"a": 5, "b": 0})), r"test/b: no image"),
    (lambda r: (folders(r, {"a": 5, "b": 5}), (r / "b/001.png").write_bytes(b"x")), r"b/001\.png: not a readable image"),
    (lambda r: (folders(r, {"a": 5}), folders(r, {"b": 5}, size=(9, 9))), r"b/000\.png: 9x9 pixels.*set 'size'"),
    (lambda r: (folders(r, {"a": 5}), folders(r, {"b": 5}, mode="L")), r"b/000\.png: grey.*set 'channels'"),
    (lambda r: folders(r, {"a": 5, "b": 2, "c": 2}), None),
])  # fmt: skip
def test_every_bad_folder_has_its_message(home, make, text):
    make(home / "mine")
    if text is None:  # two images a class are enough to train on, if not always to test on
        assert ImageFolder(path="mine").load(0).n_classes == 3
        return
    with pytest.raises(UserError, match=text):
        ImageFolder(path="mine").load(0)


@pytest.mark.parametrize("wrong", [{"test": 1.5}, {"holdout": 2.0}, {"test": 0}, {"holdout": -1}, {"channels": 2}, {"size": 2}])
def test_image_folder_refuses_bad_parameters(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ImageFolder(path="mine", **wrong)


# -- every data set ----------------------------------------------------------------------------------------------------


def test_every_built_in_dataset_says_what_it_is_and_whether_it_is_here(home):
    registry = Registry.discover()
    found = {c.component.name: c.load() for c in registry.components("dataset") if c.distribution == "fedbench"}
    assert {"digits", "cifar10", "cifar100", "mnist", "fashion-mnist", "tiny-imagenet", "dermnet", "image-folder"} <= found.keys()
    for name, cls in found.items():
        assert cls.licence != "unknown" and cls.citation, name
        assert cls.here() == {"digits": "built in", "image-folder": "wherever 'path' says"}.get(name, False), name
        if name != "image-folder":
            assert cls.home.startswith("http") and cls.size_mb is not None, name
        assert getattr(cls, "name", name) in (name, "")


def image_data(**changes) -> Data:
    x, y = np.zeros((6, 3, 4, 4), np.uint8), np.arange(6) % 3
    fields = {"train_x": x, "train_y": y, "test_x": x, "test_y": y, "holdout_x": x, "holdout_y": y, "n_classes": 3}
    return Data(**{**fields, "mean": (0.5,) * 3, "std": (0.5,) * 3, **changes})


@pytest.mark.parametrize(("changes", "text"), [
    ({"train_y": np.array([0, 1, 2, 3, 0, 1])}, r"dataset 'mine': train: 1 labels are not 0\.\.2 \(the first: 3 at position 3\)"),
    ({"test_y": np.array([1, 2, 3, 1, 2, -1])}, r"test: 2 labels are not 0\.\.2"),
    ({"holdout_y": np.arange(5)}, "holdout has 6 samples but 5 labels"),
    ({"holdout_x": np.zeros((0, 3, 4, 4), np.uint8), "holdout_y": np.zeros(0, int)}, "holdout is empty"),
    ({"test_y": np.zeros(6)}, "test labels are float64: make them int64"),
    ({"test_x": np.zeros((6, 3, 5, 4), np.uint8)}, r"test samples are \[3, 5, 4\] uint8, train samples \[3, 4, 4\]"),
    ({"holdout_x": np.zeros((6, 3, 4, 4))}, "holdout samples are .* float64, train samples .* uint8"),
    ({"train_canary": np.zeros(5, bool)}, "train has 6 samples but 5 canary flags"),
    ({"mean": None}, "need 'mean' and 'std' with 3 values each"),
    ({"std": (0.5,)}, "need 'mean' and 'std' with 3 values each"),
    ({"std": (0.5, 0.0, 0.5)}, "std must be above 0"),
])  # fmt: skip
def test_anybodys_data_is_checked(changes, text):
    assert check_data(image_data(), "mine").n_classes == 3
    with pytest.raises(UserError, match=text):
        check_data(image_data(**changes), "mine")


# -- real data ---------------------------------------------------------------------------------------------------------


def real(name: str, home: Path) -> None:
    """Link real data into the test's own folder, so that nothing is written beside it."""
    if not REAL or not (Path(REAL) / name).is_dir():
        pytest.skip(f"needs {name}/ in $FEDBENCH_DATA (now {REAL or 'unset'})")
    (home / name).symlink_to(Path(REAL) / name)


def test_real_mnist_has_the_published_statistics(home):
    real("MNIST", home)
    data = Mnist().load(0)
    assert data.train_x.shape == (60_000, 1, 28, 28) and (len(data.test_y), len(data.holdout_y)) == (8000, 2000)
    assert np.bincount(data.train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    found = imageset.moments(data.train_x)
    assert (found["mean"].tolist(), found["std"].tolist()) == (list(data.mean), list(data.std))


@pytest.mark.slow
def test_real_cifar10_as_class_folders_has_the_published_statistics(home):
    real("cifar10", home)
    data = Cifar10().load(0)
    assert data.train_x.shape == (50_000, 3, 32, 32) and np.bincount(data.train_y).tolist() == [5000] * 10
    assert np.bincount(data.holdout_y).tolist() == [200] * 10 and np.bincount(data.test_y).tolist() == [800] * 10
    found = imageset.moments(data.train_x)  # of JPEGs, hence a little less varied
    assert np.allclose(found["mean"], data.mean, atol=5e-4) and np.allclose(found["std"], data.std, atol=3e-3)
    again = Cifar10().load(0)
    assert again.digest() == data.digest()
