"""Bundles made to order: a good one, and what it takes to craft others, each with one defect alone.

Digests, sizes and manifest are made again wherever the author of a crafted one would.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from running import invoke, suite

from fedbench.core.store.files import npz_bytes
from fedbench.core.store.integrity import keys_of, sealed
from fedbench.leaderboard.submissions.archive import MAX_ENTRIES, write_archive
from fedbench.leaderboard.submissions.exporting import export

Files = dict[str, bytes]
"""name in the bundle -> content, the manifest among them"""
ATTACKS = ["loss-series", "blackbox-loss", "passive", "rmia"]


def make_folder(root: Path, **changes: Any) -> Path:
    """A results folder of a run of a second or two, with single rounds, decisions and skipped cells."""
    path = suite(root, **({"defenses": ["none", "mixup"], "attacks": ATTACKS} | changes))
    invoke(path, "--results", root / "r")
    return root / "r"


def make_bundle(folder: Path, path: Path) -> Path:
    """The bundle of a folder."""
    export(folder, path)
    return path


def files_of(bundle: Path) -> Files:
    """Its content."""
    with zipfile.ZipFile(bundle) as z:
        return {info.filename: z.read(info) for info in z.infolist()}


def packed(files: Files, manifest: Callable[[dict], None] = lambda m: None, listed: Iterable[str] | None = None) -> bytes:
    """A bundle of these files, whose manifest (after a change) lists them, or those ``listed``, as they are."""
    content = json.loads(files["manifest.json"])
    names = sorted(n for n in files if n != "manifest.json") if listed is None else list(listed)
    content["files"] = [{"path": n, "size": len(files[n]), "sha256": hashlib.sha256(files[n]).hexdigest()} for n in names]
    manifest(content)
    return zipped([("manifest.json", sealed(content)), *((n, files[n]) for n in sorted(files) if n != "manifest.json")])


def zipped(entries: list[tuple[str, bytes]]) -> bytes:
    """As fedbench writes a zip file."""
    out = io.BytesIO()
    write_archive(out, iter(entries))
    return out.getvalue()


def pick(files: Files, attack: str = "blackbox-loss", defense: str = "mixup") -> str:
    """The name of one record."""
    return next(n for n in sorted(files) if n.startswith("records/") and f"--{defense}--{attack}--" in n and n.endswith(".json"))


def scores_of(name: str) -> str:
    return name.removesuffix(".json") + ".npz"


def edited(files: Files, name: str, change: Callable[[dict], None]) -> Files:
    """A record changed, and its digest made again."""
    content = json.loads(files[name])
    change(content)
    return files | {name: sealed(content)}


def rescored(files: Files, name: str, change: Callable[[dict[str, np.ndarray]], None]) -> Files:
    """Scores changed, and every digest made again; the record's numbers stay."""
    with np.load(io.BytesIO(files[scores_of(name)])) as archive:
        arrays = {n: archive[n] for n in archive.files}
    change(arrays)
    return with_scores(files, name, npz_bytes(arrays))


def with_scores(files: Files, name: str, content: bytes) -> Files:
    """Other scores, which the record believes in."""
    files = files | {scores_of(name): content}
    return edited(files, name, lambda r: r["digests"].update(scores=hashlib.sha256(content).hexdigest()))


def renamed(files: Files, name: str, new: str) -> Files:
    """A record and its scores under another name."""
    kept = {n: c for n, c in files.items() if n not in (name, scores_of(name))}
    kept[f"records/{new}.json"] = files[name]
    return kept | ({f"records/{new}.npz": files[scores_of(name)]} if scores_of(name) in files else {})


def relabelled(files: Files, name: str, label: str, word: str) -> Files:
    """A record whose defense has another label, under the name that goes with it."""
    changed = edited(files, name, lambda r: r["defense"].update(label=label))
    stem = Path(name).stem.replace("--mixup--", f"--{word}--")
    return renamed(changed, name, stem)


def in_place(bundle: bytes, entry: str, at: int, value: bytes, local: bool = True, central: bool = True) -> bytes:
    """Bytes of an entry's two headers overwritten: ``at`` counts from the flags, which both begin alike with."""
    data = bytearray(bundle)
    with zipfile.ZipFile(io.BytesIO(bundle)) as z:
        info = z.getinfo(entry)
        start = z.start_dir
    if local:
        place = info.header_offset + 6 + at
        data[place : place + len(value)] = value
    if central:
        place = data.index(b"PK\x01\x02", start)
        while data[place + 46 : place + 46 + len(entry)] != entry.encode():
            place = data.index(b"PK\x01\x02", place + 1)
        data[place + 8 + at : place + 8 + at + len(value)] = value
    return bytes(data)


def with_entry(bundle: bytes, name: str, content: bytes = b"x", **info: Any) -> bytes:
    """One more entry, written by the standard library."""
    out = io.BytesIO(bundle)
    with zipfile.ZipFile(out, "a") as z:
        entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
        entry.create_system, entry.external_attr = 3, info.pop("mode", stat.S_IFREG | 0o644) << 16
        for field, value in info.items():
            setattr(entry, field, value)
        z.writestr(entry, content)
    return out.getvalue()


def million_entries() -> bytes:
    """A directory of a million empty files; the number in it does not fit where a small zip file has it."""
    header = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = header * 1_000_000
    return directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0)


def more_than_most_entries() -> bytes:
    """A small zip file that says a few entries and has more than a bundle may have."""
    one = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    header = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = header * (MAX_ENTRIES + 1)
    return one + directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 3, 3, len(directory), len(one), 0)


def two_names_of_one_entry(bundle: bytes) -> bytes:
    """A second directory entry for what is there already, so that unpacking it takes twice the room."""
    data = bytearray(bundle)
    end = data.rindex(b"PK\x05\x06")
    _, _, _, n, _, size, start, _ = struct.unpack("<4s4H2LH", data[end:])
    last = data.rindex(b"PK\x01\x02", start)  # of a suite
    length = end - last
    copy = data[last:end]
    at = 46 + len("suites/")
    copy[at : at + 16] = b"0" * 16
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, n + 1, n + 1, size + length, start, 0)
    return bytes(data[:end] + copy + tail)


def huge_header(shape: str) -> bytes:
    """A score file of one kilobyte whose array says that it is far larger."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name in ("t0_scores", "t0_kind", "t0_ids", "t0_canary", "test_correct"):
            z.writestr(f"{name}.npy", array)
    return out.getvalue()


def many_zeros() -> bytes:
    """A score file of a megabyte with three arrays of 256 MiB."""
    out = io.BytesIO()
    chunk = bytes(1 << 20)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        for name in ("t0_scores", "t1_scores", "t2_scores"):
            with z.open(f"{name}.npy", "w", force_zip64=True) as f:
                for _ in range(256):
                    f.write(chunk)
    return out.getvalue()


def pickled() -> bytes:
    """A score file of Python objects."""
    out = io.BytesIO()
    np.savez(out, t0_scores=np.array([{}, "x"], object), test_correct=np.ones(3, bool), allow_pickle=True)
    return out.getvalue()


def rekeyed(record: dict) -> None:
    """Another cell: what the keys are made of, and they, are another."""
    record["identity"]["attack"]["params"] |= {"forged": 1}
    record["attack"]["params"] |= {"forged": 1}
    record["run_key"], record["key"] = keys_of(record["identity"])
