"""Data of your own: tables with a class and a client column, images and FEMNIST with clients."""

import json

import numpy as np
import pytest
from PIL import Image

from fedbench.core import UserError
from fedbench.core.toolkit.arrays import check_data
from fedbench.plugins.datasets.columns import Table, read_columns
from fedbench.plugins.datasets.folders import ImageFolder
from fedbench.plugins.datasets.handwriting import WritersFemnist

SITES = ["lab-b", "lab-a", "lab-c"]
N = 60
COLUMNS = {"target": "verdict", "client": "site", "ignore": ["id"]}


@pytest.fixture
def rows(home):
    """60 rows: an id, a feature that tells rows apart, another, a class in words and a site."""
    return {
        "id": [f"p{i}" for i in range(N)],
        "age": [i + 0.5 for i in range(N)],
        "smokes": [i % 4 == 0 for i in range(N)],
        "verdict": ["sick" if i % 2 else "healthy" for i in range(N)],
        "site": [SITES[i % 3] for i in range(N)],
    }


def csv_of(columns, separator=","):
    lines = [columns, *zip(*columns.values(), strict=True)]
    return "".join(separator.join(map(str, line)) + "\n" for line in lines)


def load(file, **params):
    return check_data(Table(file=file, **{**COLUMNS, **params}).load(0), "table")


@pytest.fixture
def table(rows, home):
    """Loads the rows, with other columns, from a file."""

    def loaded(columns=None, **params):
        (home / "a.csv").write_text(csv_of({**rows, **(columns or {})}))
        return load("a.csv", **params)

    return loaded


def test_a_table_is_the_same_data_in_every_file(rows, home):
    (home / "a.csv").write_text(csv_of(rows), encoding="utf-8-sig")
    (home / "b.tsv").write_text(csv_of(rows, "\t"))
    (home / "c.csv").write_text(csv_of(rows, ";"))
    np.savez(home / "d.npz", **rows)
    first, *others = (load(file) for file in ("a.csv", "b.tsv", "c.csv", "d.npz"))
    assert {data.digest() for data in others} == {first.digest()}
    assert first.input_shape == (2,)
    assert [len(first.train_y), len(first.test_y), len(first.holdout_y)] == [30, 15, 15]
    x = np.concatenate([first.train_x, first.test_x, first.holdout_x])
    assert x.mean(axis=0) == pytest.approx([0, 0], abs=1e-6)
    assert x.std(axis=0) == pytest.approx([1, 1], abs=1e-6)


def test_a_row_keeps_its_values_its_class_and_its_client(table):
    data = table(standardise="no", train=20)
    assert len(data.train_y) == 20 and data.n_classes == 2
    for part in ("train", "holdout"):
        x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
        index = (x[:, 0] - 0.5).astype(int)
        assert x[:, 1].tolist() == (index % 4 == 0).tolist()
        assert y.tolist() == (index % 2).tolist()  # healthy before sick
        names = [sorted(SITES)[client] for client in getattr(data, f"{part}_client")]
        assert names == [SITES[i % 3] for i in index]


def test_a_parquet_file_is_read_or_its_package_named(rows, table, home):
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        (home / "a.parquet").touch()
        with pytest.raises(UserError, match=r"pip install 'fedbench-privacy\[parquet\]'"):
            load("a.parquet")
        return
    parquet.write_table(pyarrow.table(rows), home / "a.parquet")
    assert load("a.parquet").digest() == table().digest()


@pytest.mark.parametrize("params", [{}, {"target": "list"}, {"client": "list"}])
def test_lists_of_unequal_lengths_in_a_parquet_file_are_refused(rows, home, params):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows["list"] = [[1.0] * (1 + i % 2) for i in range(N)]
    parquet.write_table(pyarrow.table(rows), home / "a.parquet")
    with pytest.raises(UserError, match="'list': lists, nested or of unequal lengths; make each"):
        load("a.parquet", **params)
    assert load("a.parquet", ignore=["id", "list"]).input_shape == (2,)


def test_large_ids_of_clients_stay_apart(table):
    sites = [18358040372023708012 + i % 3 for i in range(N)]
    assert set(table({"site": sites}).train_client) == {0, 1, 2}


@pytest.mark.parametrize("classes", [(10, 9), ("10", "09")])
def test_classes_that_are_numbers_are_in_their_order(table, classes):
    data = table({"verdict": [classes[i % 2] for i in range(N)]}, standardise="no")
    assert data.train_y.tolist() == [1 - int(age) % 2 for age in data.train_x[:, 0]]


@pytest.mark.parametrize(("shape", "dtype"), [((4, 5), np.float32), ((1, 4, 4), np.uint8)])
def test_samples_of_an_npz_file_are_taken_as_they_are(home, shape, dtype):
    x, y = np.arange(N * np.prod(shape)).reshape(N, *shape) % 251, np.arange(N) % 3
    np.savez(home / "a.npz", x=x.astype(dtype), y=y)
    data = check_data(Table(file="a.npz", target="y").load(0), "table")
    assert data.train_x.dtype == dtype and data.train_client is None
    assert (data.mean is None) == (dtype != np.uint8)
    labels = {row.astype(dtype).tobytes(): label for row, label in zip(x, y, strict=True)}
    parts = np.concatenate([data.train_x, data.test_x, data.holdout_x])
    found = [labels.pop(row.tobytes()) for row in parts]
    assert found == [*data.train_y, *data.test_y, *data.holdout_y] and not labels


def test_images_with_channels_last_are_refused(home):
    y = np.arange(N) % 3
    for shape in ((6, 5, 3), (6, 5, 1)):
        for dtype in (np.uint8, np.float32):
            np.savez(home / "a.npz", x=np.zeros((N, *shape), dtype), y=y)
            with pytest.raises(UserError, match=r"channels last; .*np\.moveaxis\(x, -1, 1\)"):
                Table(file="a.npz", target="y").load(0)
    np.savez(home / "a.npz", x=np.zeros((N, 3, 6, 5), np.uint8), y=y)
    assert Table(file="a.npz", target="y").load(0).input_shape == (3, 6, 5)


def test_an_index_is_left_out_by_its_name(table):
    assert table({"": range(N)}, ignore=["id", ""]).input_shape == (2,)


def first(name, value):
    """A change of the first row."""
    return lambda rows: {name: [value, *rows[name][1:]]}


def same(rows):
    return {}


ODD = {
    "no target": (same, {"target": "verdikt"}, "'verdikt'; did you mean 'verdict'"),
    "no value of the class": (first("verdict", "NaN"), {}, r"target 'verdict', row 1"),
    "one class": (lambda rows: {"verdict": ["sick"] * N}, {}, "two classes or more"),
    "ids for classes": (same, {"target": "id", "ignore": []}, "60 values in 60 rows"),
    "a fraction for a class": (same, {"target": "age"}, r"row 1 \('0.5'; 60 such"),
    "no value of the client": (first("site", ""), {}, r"client 'site', row 1 .*drop"),
    "text for a feature": (same, {"ignore": []}, r"'id', row 1 \('p0'; 60 such.*encode"),
    "no value of a feature": (first("age", ""), {}, r"column 'age', row 1 .*no value"),
    "an infinite feature": (first("age", "inf"), {}, "row 1 .*not a finite number"),
    "an open quote": (first("age", '"1'), {}, r"line 61: 2 values for 5 columns; quote"),
    "a comma": (first("id", "p,0"), {}, r"line 2: 6 values for 5 columns; quote values"),
    "an index of pandas": (lambda rows: {"": range(N)}, {}, "column '' is named like an index"),
    "padded classes": (
        lambda rows: {"verdict": [("1", "01", "2")[i % 3] for i in range(N)]},
        {},
        r"target 'verdict', row 2 \('01'; 20 such rows\): a leading zero, and .*one way",
    ),
    "no features": (same, {"ignore": ["id", "age", "smokes"]}, "no column is left"),
}


@pytest.mark.parametrize(("change", "params", "message"), ODD.values(), ids=ODD)
def test_an_odd_column_is_refused_with_its_place_and_the_remedy(
    change, params, message, rows, table
):
    with pytest.raises(UserError, match=message):
        table(change(rows), **params)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", b"", "not one of .csv, .tsv, .npz, .parquet; save it"),
        ("a.csv", b"", "no rows below the header"),
        ("a.csv", b"a,a\n1,2\n", "line 1: two columns 'a'"),
        ("a.csv", b"a\n\xff\n", "cannot be read .*UnicodeDecodeError"),
        ("a.npz", b"PK\x03\x04", "cannot be read .*save it again"),
    ],
)
def test_an_odd_file_is_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_columns(tmp_path / name)


# --- images ---------------------------------------------------------------------------------------


def test_images_of_a_folder_keep_their_clients(home):
    """Each image has a grey of its own, of which its client follows."""
    lines, greys = ["file,client"], {}
    for tree, first in (("train", 0), ("test", 100)):
        for i in range(24):
            file = home / "mine" / tree / "ab"[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), first + i).save(file)
            greys[first + i] = i // 2 % 4
            lines.append(f"{tree}/{'ab'[i % 2]}/{i}.png,site {greys[first + i]}")
    # train alone has no fourth site
    lines[1:25] = [line.replace("site 3", "site 0") for line in lines[1:25]]
    (home / "mine" / "clients.csv").write_text("\n".join(lines))
    folder = ImageFolder(path="mine", clients="clients.csv", holdout=12)
    data = check_data(folder.load(0), "image-folder")
    train = [greys[grey] % 3 for grey in data.train_x[:, 0, 0, 0]]
    assert data.train_client.tolist() == train
    holdout = [(0, 1, 2, -1)[greys[grey]] for grey in data.holdout_x[:, 0, 0, 0]]
    assert data.holdout_client.tolist() == holdout and -1 in holdout
    (home / "mine" / "clients.csv").write_text("\n".join(lines[:-1]))
    with pytest.raises(UserError, match=r"no client of test/b/23\.png; add a row"):
        folder.load(0)


def leaf(users, n, white=1.0):
    """LEAF's form of ``n`` images a writer; the first pixel of each tells its writer."""
    content = {}
    for user in users:
        x = np.full((n, 784), white)
        x[:, 0] = 1 - user / 255
        content[f"f{user:02}"] = {"x": x.tolist(), "y": [i % 62 for i in range(n)]}
    names = list(content)
    return json.dumps({"users": names, "num_samples": [n] * len(names), "user_data": content})


def test_femnist_keeps_its_writers(home):
    for part in ("train", "test"):
        (home / "femnist" / part).mkdir(parents=True)
    for name, users in (("train/0", (7, 3)), ("train/1", (5,)), ("test/0", (3, 5, 7))):
        (home / "femnist" / f"{name}.json").write_text(leaf(users, 62))
    data = check_data(WritersFemnist(holdout=100).load(0), "femnist-writers")
    for part in ("train", "holdout"):
        x = getattr(data, f"{part}_x")
        writers = [(3, 5, 7).index(ink) for ink in x[:, 0, 0, 0]]
        assert getattr(data, f"{part}_client").tolist() == writers
        assert x.shape[1:] == (1, 28, 28) and not x[:, 0, 1:].any()
    for damage in (leaf([1], 2, white=1.5), "{}", "[", '{"user_data": {"a": {"x": [[1]]}}}'):
        (home / "femnist" / "train" / "1.json").write_text(damage)
        with pytest.raises(UserError, match=r"1\.json: cannot be read .*prepare LEAF"):
            WritersFemnist().load(0)
