"""Bundles changed by their author: digests are made anew, so that each has one defect alone.

Files are a dictionary: name in the bundle -> content.
"""

from __future__ import annotations

import io
import json
import stat
import zipfile
from pathlib import Path

import numpy as np
from edits import in_run, put

from fedbench.core.cli.main import main
from fedbench.core.store.integrity import keys_of, sealed
from fedbench.core.store.reading import load_records
from fedbench.core.store.results import MARKER
from fedbench.core.store.run_file import digest_of_arrays, member
from fedbench.leaderboard.submissions.trust import Marks


def exported(results, folder, *only):
    """The bundle of a results folder, or of a part of it."""
    assert main(["export", str(results), "-o", str(folder / "b.zip"), *only]) == 0
    return folder / "b.zip"


def levels(folder):
    """(defense, attack) -> level of trust."""
    marks = Marks(folder)
    return {
        (r.record.defense.name, r.record.attack.name): marks.level(r) for r in load_records(folder)
    }


def files_of(bundle):
    """The content of a bundle."""
    with zipfile.ZipFile(bundle) as z:
        return {info.filename: z.read(info) for info in z.infolist()}


def zipped(files):
    """A zip file of these entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name in sorted(files):
            z.writestr(entry(name), files[name])
    return out.getvalue()


def entry(name, mode=stat.S_IFREG | 0o644, extra=b""):
    """The entry of a file as fedbench writes it."""
    info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr, info.compress_type = 3, mode << 16, zipfile.ZIP_DEFLATED
    info.extra = extra
    return info


def packed(files, *changes):
    """A bundle of these files, with (path, value) put into its marker."""
    marker = json.loads(files[MARKER])
    for path, value in changes:
        put(marker, path, value)
    return zipped(files | {MARKER: sealed(marker)})


class Picked(str):
    """The name of the record of a run, and the place of a ``cell`` in it."""

    cell = 0


def records_in(files):
    """The names of the records of runs."""
    return sorted(n for n in files if n.startswith("records/") and n.endswith(".json"))


def pick(files, attack="fedmia-ii", defense="grad-noise"):
    """The record with this cell."""
    for name in [n for n in records_in(files) if f"--{defense}--" in n]:
        for i, cell in enumerate(json.loads(files[name])["cells"]):
            if cell["attack"]["label"] == attack:
                picked = Picked(name)
                picked.cell = i
                return picked
    raise LookupError(attack)


def scores_of(files, name):
    """The name of the arrays of a run."""
    return f"records/{json.loads(files[name])['arrays']}"


def edited(files, name, *changes):
    """A record with (path, value) put into a cell, and its digest made anew."""
    content = json.loads(files[name])
    for path, value in changes:
        put(content, in_run(path, name.cell), value)
    return files | {name: sealed(content)}


def arrays_of(content):
    """The arrays in a file."""
    with np.load(io.BytesIO(content)) as archive:
        return {n: archive[n] for n in archive.files}


def array_of(files, name, array):
    """An array of a cell; None where it has none."""
    arrays = arrays_of(files[scores_of(files, name)])
    return arrays.get(member(_key_in(files, name), array), arrays.get(array))


def with_scores(files, name, content):
    """Another file with the arrays of a run."""
    return files | {scores_of(files, name): content}


def rescored(files, name, **changes):
    """Arrays of a cell replaced, or removed where None; the numbers of the record stay."""
    arrays = arrays_of(files[scores_of(files, name)])
    for array, value in changes.items():
        if value is None:
            arrays.pop(member(_key_in(files, name), array), None)
            arrays.pop(array, None)
        else:
            arrays[member(_key_in(files, name), array)] = np.asarray(value)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return with_scores(files, name, out.getvalue()) | {
        name: redigested(files[name], out.getvalue())
    }


def unscored(files, name):
    """The arrays of a run without those of one cell alone."""
    arrays = arrays_of(files[scores_of(files, name)])
    out = io.BytesIO()
    np.savez(
        out,
        **{n: a for n, a in arrays.items() if not n.startswith(member(_key_in(files, name), ""))},
    )
    return with_scores(files, name, out.getvalue())


def redigested(record, scores):
    """The record of a run with the digests of the arrays that its cells have now."""
    content, arrays = json.loads(record), arrays_of_any(scores)
    for cell in (c for c in content["cells"] if c["outcome"] == "ok"):
        own = member(_key(content, cell), "")
        mine = {
            n.removeprefix(own): a for n, a in arrays.items() if "/" not in n or n.startswith(own)
        }
        mine |= {n.removeprefix(own): a for n, a in arrays.items() if n.startswith(own)}
        cell["digests"]["scores"] = digest_of_arrays(
            {n: a for n, a in mine.items() if n != "hidden"}
        )
    return sealed(content)


def arrays_of_any(content):
    """The arrays in a file, those of Python objects as strings."""
    with np.load(io.BytesIO(content), allow_pickle=True) as archive:
        return {
            n: archive[n] if not archive[n].dtype.hasobject else archive[n].astype(str)
            for n in archive.files
        }


def _key_in(files, name):
    content = json.loads(files[name])
    return _key(content, content["cells"][name.cell])


def _key(content, cell):
    return keys_of({**cell["identity"], "run": content["run"]["identity"]})[1]


def without(files, *names):
    """The other files."""
    return {n: content for n, content in files.items() if n not in names}


def renamed(files, name, stem):
    """A record and its arrays under another name."""
    scores = scores_of(files, name)
    content = json.loads(files[name])
    content["arrays"] = f"{stem}--{scores.rpartition('--')[2]}"
    moved = {f"records/{stem}.json": sealed(content), f"records/{content['arrays']}": files[scores]}
    return without(files, name, scores) | moved


def rekeyed(files, name, change):
    """A run with a changed identity of every cell, its arrays and its name with the new keys."""
    content = json.loads(files[name])
    scores = arrays_of(files[scores_of(files, name)])
    for cell, before in [(cell, _key(content, cell)) for cell in content["cells"]]:
        identity = {**cell["identity"], "run": content["run"]["identity"]}
        change(identity)
        run_key, key = keys_of(identity)
        content["run"]["identity"] = identity.pop("run")
        cell["identity"] = identity
        scores = {n.replace(member(before, ""), member(key, "")): a for n, a in scores.items()}
    out = io.BytesIO()
    np.savez(out, **scores)
    files = files | {name: sealed(content), scores_of(files, name): out.getvalue()}
    return renamed(files, name, Path(name).stem[:-12] + run_key[:12])
