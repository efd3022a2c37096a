"""Every crafted bundle: name -> (how it is made of the files of a good one, words of the reason for which it is refused)."""

from __future__ import annotations

import io
import json
import stat
import warnings
import zipfile
from collections.abc import Callable

import numpy as np
from bundles import (
    Files,
    edited,
    huge_header,
    in_place,
    many_zeros,
    million_entries,
    more_than_most_entries,
    packed,
    pick,
    pickled,
    rekeyed,
    relabelled,
    renamed,
    rescored,
    scores_of,
    two_names_of_one_entry,
    with_entry,
    with_scores,
    zipped,
)

from fedbench.core.store.files import npz_bytes
from fedbench.core.store.integrity import sealed

Crafted = tuple[Callable[[Files], bytes], str]
LINK, DEVICE = stat.S_IFLNK | 0o777, stat.S_IFCHR | 0o666
NO_NAME = "has no name of a bundle's file"


def _stray(name: str, **info) -> Crafted:
    return lambda f: with_entry(packed(f), name, **info), NO_NAME


def _score(change: Callable[[dict[str, np.ndarray]], None], reason: str, attack: str = "blackbox-loss") -> Crafted:
    return lambda f: packed(rescored(f, pick(f, attack), change)), reason


def _number(change: Callable[[dict], None], reason: str, attack: str = "blackbox-loss") -> Crafted:
    return lambda f: packed(edited(f, pick(f, attack), change)), reason


def _mix(record: dict) -> dict:
    return record["targets"][0]["groups"]["mix"]["values"]


def _manifest(change: Callable[[dict], None], reason: str) -> Crafted:
    return lambda f: packed(f, change), reason


def _swapped_scores(files: Files) -> bytes:
    """The score files of two cells exchanged, every digest made again."""
    one, other = pick(files, "blackbox-loss"), pick(files, "loss-series")
    a, b = files[scores_of(one)], files[scores_of(other)]
    return packed(with_scores(with_scores(files, one, b), other, a))


def _swapped_records(files: Files) -> bytes:
    one, other = pick(files, "blackbox-loss"), pick(files, "loss-series")
    return packed(files | {one: files[other], other: files[one]})


def _old(files: Files) -> bytes:
    name = pick(files)
    content = {k: v for k, v in json.loads(files[name]).items() if k not in ("digest", "identity", "components")}
    return packed(files | {name: json.dumps(content | {"schema_version": 3}).encode()})


def _newer(files: Files) -> bytes:
    return packed(edited(files, pick(files), lambda r: r.update(schema_version=99)))


def _deep(files: Files) -> bytes:
    return zipped([("manifest.json", b"[" * 30_000 + b"]" * 30_000)])


def _without(files: Files, name: str) -> Files:
    return {n: c for n, c in files.items() if n != name}


def _twice(files: Files) -> bytes:
    with warnings.catch_warnings(action="ignore"):  # the standard library says so, and writes it
        return with_entry(packed(files), pick(files), files[pick(files)])


def _suite(files: Files) -> str:
    return next(n for n in files if n.startswith("suites/") and n.endswith(".yaml") and "given" not in n)


def _accurate(record: dict) -> None:
    record["utility"]["accuracy"] += 0.01


def _perfect(files: Files) -> bytes:
    """One cell of a run whose model is always right: its record and its scores agree with one another."""
    name = pick(files)
    with np.load(io.BytesIO(files[scores_of(name)])) as archive:
        arrays = {n: archive[n] for n in archive.files}
    arrays["test_correct"] = np.ones_like(arrays["test_correct"])
    files = with_scores(files, name, npz_bytes(arrays))
    return packed(edited(files, name, lambda r: r["utility"].update(accuracy=1.0)))


def _twice_in_a_record(files: Files) -> bytes:
    name = pick(files)
    return packed(files | {name: b'{"seed": 7,' + files[name].lstrip()[1:]})


def _in_the_scores(change: Callable[[bytes], bytes], reason: str) -> Crafted:
    return lambda f: packed(with_scores(f, pick(f), change(f[scores_of(pick(f))]))), reason


def _and_a_script(scores: bytes) -> bytes:
    out = io.BytesIO(scores)
    with zipfile.ZipFile(out, "a") as z:
        z.writestr("../../evil.sh", b"echo")
    return out.getvalue()


def _unscored(**fields: object) -> Callable[[Files], bytes]:
    """A cell with scores that is said to have ended otherwise, its scores left out."""
    def made(files: Files) -> bytes:
        name = pick(files)
        left = {n: c for n, c in files.items() if n != scores_of(name)}
        return packed(edited(left, name, lambda r: r.update(**fields)))

    return made


ENTRIES: dict[str, Crafted] = {
    "a path out of the folder": _stray("../evil.json"),
    "a path out of the folder, inside": _stray("records/../../evil.json"),
    "an absolute path": _stray("/tmp/evil.json"),
    "a path of Windows": _stray("records\\..\\..\\evil.json"),
    "a drive of Windows": _stray("C:evil.json"),
    "a hidden file": _stray("records/.evil--0123456789ab.json"),
    "a folder": _stray("records/", mode=stat.S_IFDIR | 0o755),
    "a zip file inside": _stray("records/inner.zip"),
    "a file that ends behind a null": _stray("x", filename="records/a--0123456789ab.json\0.txt"),
    "letters that look like others": _stray("records/\uff41--0123456789ab.json"),
    "an escape in a name": _stray("records/\x1b[2J--0123456789ab.json"),
    "marks of trust": _stray("trust.json"),
    "a marker": _stray("fedbench.json"),
    "a cache": _stray("cache/a--0123456789ab.npz"),
    "a link": (lambda f: with_entry(packed(f), "records/a--0123456789ab.json", b"/etc/passwd", mode=LINK), "is a link"),
    "a device": (lambda f: with_entry(packed(f), "records/a--0123456789ab.json", mode=DEVICE), "is a link or another special"),
    "a file that the manifest does not list": (
        lambda f: with_entry(packed(f), "records/a--0123456789ab.json"), "which its manifest does not list",
    ),
    "an entry twice": (_twice, "two entries are called"),
    "an entry twice but for case": (
        lambda f: with_entry(packed(f), pick(f).replace("digits", "DIGITS")), "two entries are called",
    ),
    "an encrypted entry": (lambda f: in_place(packed(f), pick(f), 0, b"\x01\x00"), "is encrypted"),
    "sizes behind the entry": (lambda f: in_place(packed(f), pick(f), 0, b"\x08\x00"), "in a way that fedbench does not use"),
    "another compression": (lambda f: in_place(packed(f), pick(f), 2, b"\x0e\x00"), "compressed in another way"),
    "a bomb": (lambda f: packed(f | {pick(f): b" " * (12 << 20)}), "a zip bomb"),
    "a record too large": (lambda f: packed(f | {pick(f): b" " * (17 << 20)}), "more than the 16,777,216 that such a file may"),
    "a size that is not true": (
        lambda f: in_place(packed(f), pick(f), 16, (4_000_000_000).to_bytes(4, "little")), "more than the 16,777,216",
    ),
    "a size that is too small": (lambda f: in_place(packed(f), pick(f), 16, (7).to_bytes(4, "little")), "its manifest says"),
    "two sizes of one entry": (
        lambda f: in_place(packed(f), pick(f), 16, (7).to_bytes(4, "little"), central=False), "says something else of itself",
    ),
    "two names of one entry": (lambda f: two_names_of_one_entry(packed(f)), "overlaps, or leaves a gap"),
    "something before it": (lambda f: b"#!/bin/sh\n" + packed(f), "its directory is not where its end says"),
    "something behind it": (lambda f: packed(f) + b"more", "does not end as a zip file of fedbench does"),
    "a comment": (lambda f: packed(f)[:-2] + b"\x03\x00abc", "does not end as a zip file of fedbench does"),
    "a million entries": (lambda f: million_entries(), "more than 50,000 entries"),
    "more entries than it says": (lambda f: more_than_most_entries(), "it says 3 entries"),
    "nothing": (lambda f: b"", "too short for a zip file"),
    "no zip file": (lambda f: b"PK" * 4000, "does not end as a zip file"),
    "an empty zip file": (lambda f: zipped([]), "it has no manifest.json"),
}  # fmt: skip

MANIFESTS: dict[str, Crafted] = {
    "a wrong digest": (
        lambda f: zipped([(n, c.replace(b'"ok"', b'"OK"') if n == pick(f) else c) for n, c in f.items()]),
        "the digest of 'records/",
    ),
    "a manifest that was changed": (
        lambda f: zipped([(n, c.replace(b'"suite": "tiny"', b'"suite": "tinz"')) for n, c in f.items()]),
        "its manifest was changed",
    ),
    "another bundle version": _manifest(lambda m: m.update(bundle=2), "bundle version 2, this fedbench reads 1: upgrade"),
    "no bundle version": _manifest(lambda m: m.pop("bundle"), "it has no bundle version"),
    "a bundle version that is true": _manifest(lambda m: m.update(bundle=True), "it has no bundle version"),
    "a schema of the future": _manifest(lambda m: m.update(schema_version=99), "record schema 99, this fedbench reads up to"),
    "a level of trust": _manifest(lambda m: m.update(trust="reproduced"), "its manifest is none (trust: Extra inputs"),
    "a file listed twice": (lambda f: packed(f, listed=[*(n for n in f if n != "manifest.json"), pick(f)]), "lists a file twice"),
    "a file that is not there": (
        lambda f: packed(_without(f, pick(f)), lambda m: m["files"].append(
            {"path": pick(f), "size": 3, "sha256": "0" * 64})), "which its manifest lists",
    ),
    "another size": _manifest(lambda m: m["files"][0].update(size=3), "bytes, its manifest says 3"),
    "a title with an escape": _manifest(lambda m: m.update(title="\x1b[31mred"), "a character that cannot be seen"),
    "a title that turns around": _manifest(lambda m: m.update(title="\u202etuo"), "a character that cannot be seen"),
    "nested deeply": (_deep, "not a complete JSON file"),
    "no records": (lambda f: packed({n: c for n, c in f.items() if not n.startswith("records/")}), "it holds no records"),
    "published numbers of no suite": _manifest(
        lambda m: m.update(published=[{"paper": "fedmia"}]), "published numbers that no suite has (source: Field required)",
    ),
    "a name twice in the manifest": (
        lambda f: zipped([(n, b'{"title": "x",' + c.lstrip()[1:] if n == "manifest.json" else c) for n, c in f.items()]),
        "'title' stands there twice",
    ),
    "a suite of another plan": _manifest(lambda m: m.update(plans=[]), "not those of the plans that its manifest lists"),
    "a changed suite": (lambda f: packed(f | {_suite(f): f[_suite(f)] + b"# more\n"}), "it is not the plan that its name says"),
}  # fmt: skip

RECORDS: dict[str, Crafted] = {
    "a record under another name": (
        lambda f: packed(renamed(f, pick(f), pick(f)[8:-5].replace("mixup", "none"))), "holds the record of another cell",
    ),
    "two records swapped": (_swapped_records, "holds another cell's record"),
    "a record of another cell's key": (lambda f: packed(edited(f, pick(f), rekeyed)), "holds another cell's record"),
    "a record of another suite": _number(lambda r: r.update(suite="other"), "is of suite 'other', not 'tiny'"),
    "a record of the future": (_newer, "made by a newer fedbench"),
    "a record without protection": (_old, "is of schema 3, which nothing protects"),
    "a smaller schema": _number(lambda r: r.update(schema_version=4), "it says schema 4, which has no 'components'"),
    "a digest that is not its own": (
        lambda f: packed(f | {pick(f): json.dumps(json.loads(f[pick(f)]) | {"reason": "x"}).encode()}), "damaged or changed",
    ),
    "another package of the data": _number(
        lambda r: r["components"]["dataset"].update(distribution="other 1.0"), "components is",
    ),
    "a level of trust in a record": _number(lambda r: r.update(trust="reproduced"), "trust: Extra inputs"),
    "a label with an escape": (lambda f: packed(relabelled(f, pick(f), "mix\x1b[31mup", "mix_31mup")), "cannot be seen"),
    "a label that turns around": (lambda f: packed(relabelled(f, pick(f), "mix\u202eup", "mix_up")), "cannot be seen"),
    "a number without end": (
        lambda f: packed(f | {pick(f): f[pick(f)].replace(b'"seed": 0', b'"seed": 1e999', 1)}), "is out of range",
    ),
    "scores without a record": (lambda f: packed(_without(f, pick(f))), "belong to no record with scores"),
    "a record without scores": (lambda f: packed(_without(f, scores_of(pick(f)))), "missing, though its record says 'ok'"),
    "scores of a skipped cell": (
        lambda f: packed(f | {scores_of(pick(f, "rmia")): f[scores_of(pick(f))]}), "belong to no record with scores",
    ),
    "a name twice in a record": (_twice_in_a_record, "'seed' stands there twice"),
    "an adversary's doing with scores": _number(lambda r: r.update(by_adversary=True), "it did not diverge with an adversary"),
    "an adversary's doing without one": (
        _unscored(outcome="diverged", by_adversary=True, targets=[], pooled={}), "it did not diverge with an adversary inside",
    ),
    "numbers of a skipped cell": (_unscored(outcome="skipped", reason="x"), "outcome is 'skipped', but it has scores"),
    "a run that took no time": _number(lambda r: r["measured"].update(train_cpu_s=-5.0), "times are negative"),
    "a round better than all": _number(lambda r: r["history"][0].update(accuracy=5.0), "accuracy of a round is not between"),
    "other rounds than the run's": _number(
        lambda r: r["history"][0].update(accuracy=r["history"][0]["accuracy"] / 2), "of one run, but have other rounds",
    ),
    "a model that is right in one cell": (_perfect, "of one run, but have other test accuracy"),
    "no list of fields": (lambda f: packed(f | {pick(f): sealed({"schema_version": 5})}), "not a valid record"),
}  # fmt: skip

SCORES: dict[str, Crafted] = {
    "swapped scores": (_swapped_scores, "its scores give"),
    "an array that says it is huge": (
        lambda f: packed(with_scores(f, pick(f), huge_header("(4000000000,)"))), "is not a vector of plain numbers below",
    ),
    "an array that ends early": (lambda f: packed(with_scores(f, pick(f), huge_header("(4000,)"))), "expected bool"),
    "an array of many axes": (lambda f: packed(with_scores(f, pick(f), huge_header("(9, 9)"))), "is not a vector"),
    "arrays that are large together": (lambda f: packed(with_scores(f, pick(f), many_zeros())), "its arrays are 768 MiB"),
    "a directory of a million arrays": (
        lambda f: packed(with_scores(f, pick(f), million_entries())), "its directory is 44 MiB, more than 16",
    ),
    "Python objects": (lambda f: packed(with_scores(f, pick(f), pickled())), "is not a vector of plain numbers"),
    "scores that are no numbers": _score(lambda a: a["t0_scores"].__setitem__(slice(None), np.nan), "values that are not finite"),
    "scores without end": _score(lambda a: a["t1_scores"].__setitem__(3, np.inf), "values that are not finite"),
    "other scores": _score(lambda a: a["t0_scores"].__setitem__(slice(0, 9), 99.0), "its scores give"),
    "other members": _score(lambda a: a["t0_kind"].__setitem__(slice(0, 200), 0), "its scores give"),
    "members alone": _score(lambda a: a["t0_kind"].__setitem__(slice(None), 0), "its scores cannot be judged"),
    "a kind that is none": _score(lambda a: a["t0_kind"].__setitem__(0, 9), "holds values outside -1..2"),
    "other test samples": _score(lambda a: a.update(test_correct=~a["test_correct"]), "test accuracy is"),
    "no test samples": _score(lambda a: a.update(test_correct=a["test_correct"][:0]), "test accuracy is"),
    "no scores": _score(lambda a: a.pop("t0_scores"), "the array 't0_scores' is missing"),
    "an array that nothing names": _score(lambda a: a.update(hidden=np.zeros(9)), "'hidden.npy', which its record does not name"),
    "scores of a target more": _score(lambda a: a.update(t9_scores=np.zeros(9)), "'t9_scores.npy', which its record does not"),
    "a script among the arrays": _in_the_scores(_and_a_script, "'../../evil.sh', which its record does not name"),
    "a program before the arrays": _in_the_scores(lambda c: b"MZ" + bytes(500) + c, "bytes that belong to no array"),
    "a sample many times": _score(lambda a: a["t0_ids"].__setitem__(slice(None), 5), "among its candidates twice"),
    "candidates of another order": _score(
        lambda a: a.update(t0_ids=a["t0_ids"][::-1].copy()), "of one run, but have other candidates of target 0",
    ),
    "other canaries": _score(lambda a: a.update(t0_canary=~a["t0_canary"]), "its scores give"),
    "a forged AUC": _number(lambda r: _mix(r)["auc"].update(value=0.5), "auc is 0.5, its scores give"),
    "a forged TF01": _number(lambda r: _mix(r)["tf01"].update(value=0.1), "tf01 is 0.1, its scores give None"),
    "a forged advantage": _number(lambda r: _mix(r)["advantage"].update(value=0.01), "advantage is 0.01, its scores give"),
    "a forged balanced accuracy": _number(
        lambda r: _mix(r)["balanced_accuracy"].update(value=0.5), "balanced_accuracy is 0.5, its scores give",
    ),
    "a forged standard error": _number(
        lambda r: _mix(r)["auc"].update(error=0.001), "the error of auc is 0.001, its scores give",
    ),
    "a metric more": _number(lambda r: _mix(r).update(luck={"value": 1.0, "error": None}), "fedbench does not know: luck"),
    "a forged pooled number": _number(
        lambda r: r["pooled"]["ofl"]["values"]["auc"].update(value=0.5), "pooled, ofl: auc is 0.5, its scores give",
    ),
    "a group less": _number(lambda r: r["targets"][0]["groups"].pop("ofl"), "its scores give mix, ofl, ifl"),
    "a forged number of members": _number(lambda r: r["pooled"]["mix"].update(n_members=10**6), "members is 1000000"),
    "a forged test accuracy": _number(_accurate, "test accuracy is"),
    "a forged last round": _number(
        lambda r: r["targets"][0]["rounds"].update(last_auc=0.5), "auc of its last round is 0.5, its scores give",
    ),
    "a best round below the last": _number(
        lambda r: r["targets"][0]["rounds"].update(best_auc=0.01), "the best round's AUC 0.01 is below",
    ),
    "a forged maximum": _number(
        lambda r: r["targets"][0]["maximum"].update(auc=0.01), "the largest AUC 0.01 is below the last round's",
    ),
    "a forged maximum of a trajectory": _number(
        lambda r: r["targets"][0]["maximum"].update(advantage=0.9), "the largest advantage is 0.9, its scores give",
        "loss-series",
    ),
    "a trajectory of many looks": _number(
        lambda r: r["targets"][0]["maximum"].update(rounds=9), "its maximum is of 9 rounds, but it has one score",
        "loss-series",
    ),
    "a maximum less": _number(lambda r: r["targets"][0].update(maximum=None), "the maximum of a target is missing"),
    "a null that is too low": _score(
        lambda a: a["t0_null_auc"].__setitem__(slice(None), 0.1), "the null of the largest AUC is not what its scores give",
    ),
    "a null that is too high": _score(
        lambda a: a["t0_null_advantage"].__setitem__(slice(None), 0.9), "the null of the largest advantage is not", "loss-series",
    ),
    "a null that is none": _score(
        lambda a: a["t0_null_auc"].__setitem__(0, np.nan), "'t0_null_auc' holds values that are not between 0 and 1",
    ),
    "no null": _score(lambda a: a.pop("t0_null_auc"), "the array 't0_null_auc' is missing"),
    "a null of two lengths": _score(lambda a: a.update(t0_null_auc=a["t0_null_auc"][:9]), "are empty or differ in length"),
    "a forged decision": _number(
        lambda r: r["targets"][0]["decision"].update(last_accuracy=0.99, last_recall=1.0), "no threshold on its scores gives",
        "passive",
    ),
}  # fmt: skip

CRAFTED = ENTRIES | MANIFESTS | RECORDS | SCORES
