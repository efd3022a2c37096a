"""Tables of your own: a CSV, npz or Parquet file with columns for the class and the client."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Data, Dataset, UserError
from fedbench.core.toolkit import Arrays, data_folder
from fedbench.plugins.datasets.imageset import moments
from fedbench.plugins.datasets.reading import parsing, read_once
from fedbench.plugins.datasets.sampling import Resplit, draw_data

Columns = dict[str, np.ndarray]
"""by name, one value (text, as CSV has it) or one array a row"""

_MISSING = ("", "na", "n/a", "nan", "null", "none", "nat")  # as pandas reads them
_NO_VALUE = "no value; fill it in or drop the row"
_BOOLEANS = ("true", "false")
_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # names that pandas gives a table's index
_EXACT = 2**53  # below it, float64 tells whole numbers apart
_MOST_CHANNELS = 4  # of an image
_READING = "2"  # raised where an unchanged file gives other arrays: older ones are cached
_ROWS_OF_A_CLASS = 2  # on average at least


class Table(Dataset):
    """Rows of a file of yours, split by seed; each class keeps its share in every split.

    All columns beside ``target``, ``client`` and ``ignore`` are features, standardised. In an npz
    file a column is an array of one value a row; a lone array of more dimensions is the samples as
    they are (uint8 images [n, channels, height, width] are normalised). ``client`` serves
    ``partition: given`` and gives hold-outs of each client's own site.
    """

    name = "table"
    licence = "yours"
    citation = "the data's own"
    n_classes = None

    class Params(Resplit):
        file: str = Field(
            min_length=1,
            description=".csv, .tsv (with a header), .npz or .parquet; a relative path starts at "
            "the data folder ($FEDBENCH_DATA)",
        )
        target: str = Field(description="column of the class; text or whole numbers")
        client: str | None = Field(
            None, description="column of the client that a row belongs to; text or whole numbers"
        )
        ignore: tuple[str, ...] = Field((), description="columns that are no features")
        standardise: Literal["columns", "no"] = Field(
            "columns",
            description="subtract a column's mean and divide by its deviation, of all rows",
        )

    @classmethod
    def here(cls) -> str | bool:
        return "wherever 'file' says"

    def load(self, seed: int) -> Data:
        file = data_folder() / Path(self.params.file).expanduser()
        settings = self.params.model_dump_json(exclude={"train", "test", "holdout", "label_noise"})
        remedy = "put it there, or change 'file'"
        known = [settings, _READING]
        arrays = read_once(self.name, [file], file.parent, self._read, remedy, known)
        facts: dict[str, Any] = {
            name: tuple(arrays[name].tolist()) for name in ("mean", "std") if name in arrays
        }
        return draw_data(self, arrays, seed, **facts)

    def _read(self, files: Sequence[Path]) -> Arrays:
        (file,) = files
        params = self.params
        columns = read_columns(file)
        names = [params.target, *params.ignore]
        if params.client is not None:
            names.append(params.client)
        for name in names:
            require_column(columns, name, file)
        arrays = {
            "train_y": _classes(columns.pop(params.target), f"{file}: target '{params.target}'")
        }
        if params.client is not None:
            client = category_codes(columns.pop(params.client), f"{file}: client '{params.client}'")
            arrays["train_client"] = client
        features = {name: values for name, values in columns.items() if name not in params.ignore}
        if not features:
            raise UserError(f"{file}: no column is left for features; there must be one")
        for name in _INDEX:
            if name in features:
                raise UserError(
                    f"{file}: column '{name}' is named like an index that pandas wrote; put "
                    f"'{name}' into 'ignore', or name it if it is a feature"
                )
        samples = _samples(features, file)
        if samples.dtype == np.uint8:
            return arrays | {"train_x": samples} | moments(samples)
        if samples.ndim == 2 and params.standardise == "columns":
            samples = _standardised(samples)
        return arrays | {"train_x": samples.astype(np.float32)}


# --- files ----------------------------------------------------------------------------------------


def read_columns(file: Path) -> Columns:
    """Return the columns of a file.

    Raises:
        UserError: it is of no known kind, cannot be parsed, or has columns of different lengths.
    """
    reader = _READERS.get(file.suffix)
    if reader is None:
        raise UserError(f"{file}: not one of {', '.join(_READERS)}; save it as one of these")
    with parsing(file, "save it again"):
        columns = reader(file)
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise UserError(f"{file}: columns of {sorted(lengths)} rows; all need the same number")
    return columns


def require_column(columns: Columns, name: str, file: Path) -> None:
    """Raise ``UserError`` with the nearest names where there is no such column."""
    if name in columns:
        return
    names = list(columns)
    near = get_close_matches(name, names) or names[:10]
    raise UserError(f"{file}: no column '{name}'; did you mean {', '.join(map(repr, near))}?")


def _read_csv(file: Path) -> Columns:
    """Read a header and rows, separated by the comma, semicolon or tab that the header has most."""
    with open(file, newline="", encoding="utf-8-sig") as lines:
        separator = max(",;\t", key=lines.readline().count)
        lines.seek(0)
        rows = csv.reader(lines, delimiter=separator)
        header = [name.strip() for name in next(rows, [])]
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise UserError(f"{file}, line 1: two columns '{twice}'; rename one")
        cells = []
        for row in rows:
            if row and len(row) != len(header):
                raise UserError(
                    f"{file}, line {rows.line_num}: {len(row)} values for {len(header)} columns; "
                    f"quote values that contain {separator!r}"
                )
            if row:
                cells.append(row)
    if not cells:
        raise UserError(f"{file}: no rows below the header; add some")
    return dict(zip(header, map(np.array, zip(*cells, strict=True)), strict=True))


def _read_npz(file: Path) -> Columns:
    with np.load(file, allow_pickle=False) as archive:
        return {name: np.atleast_1d(archive[name]) for name in archive.files}


def _read_parquet(file: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{file}: Parquet needs pyarrow: pip install 'fedbench-privacy[parquet]'"
        ) from error
    table = parquet.read_table(file)
    return {
        name: _stacked(table[name].to_numpy(zero_copy_only=False)) for name in table.column_names
    }


def _stacked(values: np.ndarray) -> np.ndarray:
    """Return [n, length] of a column of lists of one length, every other column as it is."""
    if values.dtype != object:
        return values
    lengths = {np.shape(value) for value in values}
    return np.stack(list(values)) if len(lengths) == 1 and lengths != {()} else values


_READERS: Mapping[str, Any] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}


# --- columns --------------------------------------------------------------------------------------


def category_codes(values: np.ndarray, place: str) -> np.ndarray:
    """Return [n] int64, 0 for the first of the sorted values; numbers are sorted as such.

    Raises:
        UserError: a value is missing, or a number that is not whole; ``place`` is for the message.
    """
    if values.ndim != 1:
        raise UserError(f"{place}: {list(values.shape)} values; one a row is needed")
    text = _text(values, place)
    _refuse(np.isin(np.char.lower(text), _MISSING), text, place, _NO_VALUE)
    categories = text
    if all(map(_is_number, text)) and abs(numbers := text.astype(np.float64)).max() < _EXACT:
        remedy = "not a whole number: no category; group the values, or choose another column"
        _refuse(numbers != np.round(numbers), text, place, remedy)
        if len(np.unique(text)) > len(np.unique(numbers)):
            padded = np.array([_is_padded(value) for value in text])
            remedy = (
                "a leading zero, and numbers written in two ways, which may be one category or "
                "two; write each in one way, or as text (such as 'no 01')"
            )
            _refuse(padded, text, place, remedy)
        categories = numbers
    return np.unique(categories, return_inverse=True)[1].astype(np.int64)


def _classes(values: np.ndarray, place: str) -> np.ndarray:
    y = category_codes(values, place)
    n_classes = int(y.max()) + 1
    if n_classes == 1:
        raise UserError(f"{place}: all rows have one value; there must be two classes or more")
    if n_classes * _ROWS_OF_A_CLASS > len(y):
        raise UserError(
            f"{place}: {n_classes:,} values in {len(y):,} rows are no classes; choose another "
            "column, or group the values"
        )
    return y


def _samples(features: Columns, file: Path) -> np.ndarray:
    """Return [n, features] float64, or the samples of a lone array of more dimensions."""
    if len(features) == 1:
        (samples,) = features.values()
        name = next(iter(features))
        if samples.ndim == 4:
            _require_channels_first(samples, f"{file}: '{name}'")
            if samples.dtype == np.uint8:
                return samples
        if samples.ndim > 1:
            flat = samples.reshape(len(samples), -1)
            return _numbers(flat, f"{file}: '{name}'").reshape(samples.shape)
    for name, values in features.items():
        if values.ndim > 1:
            raise UserError(
                f"{file}: '{name}' has {list(values.shape)} values beside other features; put the "
                "others into 'ignore'"
            )
    columns = [_numbers(values, f"{file}: column '{name}'") for name, values in features.items()]
    return np.stack(columns, axis=1)


def _require_channels_first(samples: np.ndarray, place: str) -> None:
    """Raise ``UserError`` for images [n, height, width, channels]."""
    _, *image, last = samples.shape
    if last <= _MOST_CHANNELS < min(image):
        raise UserError(
            f"{place}: {list(samples.shape)} has its channels last; save it as [n, channels, "
            "height, width]: np.moveaxis(x, -1, 1)"
        )


def _numbers(values: np.ndarray, place: str) -> np.ndarray:
    """Return finite float64 of numbers, text of numbers, or true and false."""
    if values.dtype.kind not in "fiub":
        values = _parsed(np.char.lower(_text(values, place)), place)
    remedy = "not a finite number; fill it in or drop the row"
    _refuse(~np.isfinite(values), values, place, remedy)
    return values.astype(np.float64)


def _text(values: np.ndarray, place: str) -> np.ndarray:
    try:
        return np.char.strip(values.astype(str))
    except ValueError as error:
        remedy = "make each value a column of its own, or name the column in 'ignore'"
        raise UserError(f"{place}: lists, nested or of unequal lengths; {remedy}") from error


def _parsed(text: np.ndarray, place: str) -> np.ndarray:
    if np.isin(text, _BOOLEANS).all():
        return text == "true"
    _refuse(np.isin(text, _MISSING), text, place, _NO_VALUE)
    words = np.array([not _is_number(value) for value in text.flat]).reshape(text.shape)
    remedy = "text; encode it as numbers (one column a category), or name the column in 'ignore'"
    _refuse(words, text, place, remedy)
    return text.astype(np.float64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_padded(number: str) -> bool:
    digits = number.lstrip("+-")
    return digits[:1] == "0" and digits[1:2].isdigit()


def _refuse(wrong: np.ndarray, values: np.ndarray, place: str, remedy: str) -> None:
    """Raise ``UserError`` for the first row (from 1, below a header) with a wrong value."""
    rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    if len(rows):
        value = str(values[rows[0]])[:40]
        raise UserError(
            f"{place}, row {rows[0] + 1} ({value!r}; {len(rows):,} such rows): {remedy}"
        )


def _standardised(samples: np.ndarray) -> np.ndarray:
    """Return columns of mean 0 and deviation 1; constant ones are 0."""
    deviation = samples.std(axis=0)
    deviation[deviation == 0] = 1
    return (samples - samples.mean(axis=0)) / deviation
