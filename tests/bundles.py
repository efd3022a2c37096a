"""Bundles changed by their author: digests, sizes and the manifest are made anew, so that each has one defect alone.

Files are a dictionary: name in the bundle -> content, the manifest among them.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
from pathlib import Path

import numpy as np
from edits import put

from fedbench.core.cli.main import main
from fedbench.core.store.integrity import keys_of, sealed
from fedbench.core.store.reading import load_records
from fedbench.core.store.trust import read_trust


def exported(results, folder, *only):
    """The bundle of a results folder, or of a part of it."""
    assert main(["export", str(results), "-o", str(folder / "b.zip"), *only]) == 0
    return folder / "b.zip"


def levels(folder):
    """(defense, attack) -> level of trust."""
    trust = read_trust(folder)
    return {(r.record.defense.name, r.record.attack.name): trust.of(r).level for r in load_records(folder)}


def files_of(bundle):
    """The content of a bundle."""
    with zipfile.ZipFile(bundle) as z:
        return {info.filename: z.read(info) for info in z.infolist()}


def zipped(files):
    """A zip file of these entries, the manifest first."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name in sorted(files, key=lambda name: (name != "manifest.json", name)):
            z.writestr(entry(name), files[name])
    return out.getvalue()


def entry(name, mode=stat.S_IFREG | 0o644):
    """The entry of a file as fedbench writes it."""
    info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr, info.compress_type = 3, mode << 16, zipfile.ZIP_DEFLATED
    return info


def packed(files, *changes):
    """A bundle of these files with a manifest that lists them as they are, with (path, value) put into it."""
    manifest = json.loads(files["manifest.json"])
    listed = sorted(n for n in files if n != "manifest.json")
    manifest["files"] = [{"path": n, "size": len(files[n]), "sha256": hashlib.sha256(files[n]).hexdigest()} for n in listed]
    for path, value in changes:
        put(manifest, path, value)
    return zipped(files | {"manifest.json": sealed(manifest)})


def pick(files, attack="fedmia-ii", defense="grad-noise"):
    """The name of one record."""
    return next(n for n in sorted(files) if f"--{defense}--{attack}--" in n and n.endswith(".json"))


def scores_of(name):
    """The name of its scores."""
    return name.removesuffix(".json") + ".npz"


def edited(files, name, *changes):
    """A record with (path, value) put into it, and its digest made anew."""
    content = json.loads(files[name])
    for path, value in changes:
        put(content, path, value)
    return files | {name: sealed(content)}


def arrays_of(content):
    """The arrays of a score file."""
    with np.load(io.BytesIO(content)) as archive:
        return {n: archive[n] for n in archive.files}


def with_scores(files, name, content):
    """Another score file, with its digest in the record."""
    digest = hashlib.sha256(content).hexdigest()
    return edited(files | {scores_of(name): content}, name, ("digests/scores", digest))


def rescored(files, name, **changes):
    """Arrays of a score file replaced, or removed where None; the numbers of the record stay."""
    arrays = arrays_of(files[scores_of(name)]) | changes
    out = io.BytesIO()
    np.savez(out, **{n: a for n, a in arrays.items() if a is not None})
    return with_scores(files, name, out.getvalue())


def without(files, *names):
    """The other files."""
    return {n: content for n, content in files.items() if n not in names}


def renamed(files, name, stem):
    """A record and its scores under another name."""
    moved = {f"records/{stem}.json": files[name], f"records/{stem}.npz": files[scores_of(name)]}
    return without(files, name, scores_of(name)) | moved


def rekeyed(files, name, change):
    """A record with a changed identity, and with all that is made of it; under another name."""
    content = json.loads(files[name])
    change(content["identity"])
    run = content["identity"]["run"]
    content["run_key"], content["key"] = keys_of(content["identity"])
    content["digests"] |= run["digests"]
    content["defense"] |= {n: v for n, v in run["defense"].items() if n != "then"}
    return renamed(files | {name: sealed(content)}, name, Path(name).stem[:-12] + content["key"][:12])
