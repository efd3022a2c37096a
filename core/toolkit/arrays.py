"""From files to arrays: decode images, cache them, and check the arrays of a data set."""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedbench.core.contract.components import Data
from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import TEMPORARY_PREFIX, read_npz
from fedbench.core.toolkit.download import decoded_folder

if TYPE_CHECKING:
    from PIL.Image import Image


def check_data(data: Data, name: str) -> Data:
    """Return ``data``.

    Raises:
        UserError: with everything that is wrong: lengths, shapes, labels, canary flags,
            normalisation. ``name`` is the data set's, for the message.
    """
    problems: list[str] = []
    for split in data.splits:
        problems += _split_problems(data, split)
    problems += _normalisation_problems(data)
    if problems:
        raise UserError(*(f"dataset '{name}': {problem}" for problem in problems))
    return data


def check_labels(y: np.ndarray, n_classes: int, where: str) -> None:
    """Check that every label is in 0..C-1.

    Raises:
        UserError: naming ``where`` and the first position that is not.
    """
    if problem := _label_problem(y, n_classes):
        raise UserError(f"{where}: {problem}")


def _label_problem(y: np.ndarray, n_classes: int) -> str:
    wrong = np.flatnonzero((y < 0) | (y >= n_classes))
    if not len(wrong):
        return ""
    return (
        f"{len(wrong):,} labels are not 0..{n_classes - 1} (the first: {y[wrong[0]]} at position "
        f"{wrong[0]}); number the classes from 0, or fix the file or n_classes"
    )


def _split_problems(data: Data, split: str) -> Iterator[str]:
    x = getattr(data, f"{split}_x")
    y = getattr(data, f"{split}_y")
    if len(x) == 0:
        yield f"{split} is empty"
        return
    if len(x) != len(y):
        yield f"{split} has {len(x):,} samples but {len(y):,} labels"
        return
    shape = data.train_x.shape[1:]
    dtype = data.train_x.dtype
    if (x.shape[1:], x.dtype) != (shape, dtype):
        yield (
            f"{split} samples are {list(x.shape[1:])} {x.dtype}, train samples {list(shape)} "
            f"{dtype}: make them alike"
        )
    labels = data.task.y_dtype == "int64"
    if labels and (problem := _label_problem(y, data.n_classes)):
        yield f"{split}: {problem}"
    client = getattr(data, f"{split}_client", None)
    if client is not None and (client.shape != y.shape or client.dtype.kind != "i"):
        yield f"{split}_client is {client.dtype} {list(client.shape)}, expected int64 [{len(y)}]"
    canary = getattr(data, f"{split}_canary", None)
    if canary is not None and len(canary) != len(y):
        yield f"{split} has {len(y):,} samples but {len(canary):,} canary flags"


def _normalisation_problems(data: Data) -> Iterator[str]:
    """Yield the first problem of mean and standard deviation."""
    moments = {"mean": data.mean, "std": data.std}
    for name, values in moments.items():
        if not np.isfinite(values or ()).all():
            yield (
                f"{name} is {values}, expected finite numbers (of an empty or constant channel "
                "there are none)"
            )
            return
    if data.train_x.dtype != np.uint8:
        return
    if data.train_x.ndim != 4:
        yield (
            f"uint8 samples are {list(data.train_x.shape[1:])}, not images [channels, height, "
            "width]"
        )
        return
    channels = data.train_x.shape[1]
    if any(values is None or len(values) != channels for values in moments.values()):
        yield (
            f"uint8 images with {channels} channels need 'mean' and 'std' with {channels} values "
            "each"
        )
    elif min(data.std or (1.0,)) <= 0:
        yield f"std must be above 0, not {data.std}"


# --- cache ----------------------------------------------------------------------------------------


Arrays = dict[str, np.ndarray]


def cached(name: str, source: Iterable[str], build: Callable[[], Arrays]) -> Arrays:
    """Return ``build()``, or what it returned earlier for the same ``source``.

    A damaged cache (each array carries a CRC) is built again; one that cannot be written costs a
    warning, not the run.

    Args:
        source: lines that name everything the arrays depend on (files with size and time, decoding
            parameters).
    """
    # names need not be UTF-8
    digest = hashlib.sha256("\n".join(source).encode("utf-8", "surrogateescape")).hexdigest()
    path = decoded_folder() / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{digest[:20]}.npz"
    if path.exists():
        try:
            return read_npz(path)
        except (OSError, ValueError) as error:
            print(f"fedbench: {path} is damaged ({error}); decoding again", file=sys.stderr)
    arrays = build()
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(temporary, allow_pickle=False, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    except OSError as error:
        print(
            f"fedbench: cannot write {path} ({error.strerror}): the next run decodes again",
            file=sys.stderr,
        )
    finally:
        temporary.unlink(missing_ok=True)
    return arrays


def file_lines(files: Iterable[str | Path], root: Path) -> list[str]:
    """Return lines for ``source``: path below ``root``, size and time of change of each file."""
    start = len(os.path.join(root, ""))
    lines = []
    for file in files:
        status = os.stat(file)
        lines.append(f"{os.fspath(file)[start:]}:{status.st_size}:{status.st_mtime_ns}")
    return lines


# --- images ---------------------------------------------------------------------------------------


SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# What the suffixes stand for, and nothing else: by its content, EPS called .png would start
# Ghostscript.
_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
Fit = Literal["stretch", "crop"]
_MODE = {1: "L", 3: "RGB"}
_MOST_PIXELS = 2**26  # of one image file
_MOST_BYTES = 2**34  # of all decoded images
_MOST_PROBLEMS = 10


@dataclass(frozen=True)
class Labelled:
    """Image files and their class."""

    files: list[str]
    """[n] paths"""
    y: np.ndarray
    """[n] int64, an index into the class names"""
    names: list[str]
    """sorted class names"""


def class_folders(root: Path, at_least: int = 1) -> Labelled:
    """List the images below ``root/<class>/`` with torchvision, sorted by class, then by path.

    Hidden folders and files do not count, nor files of other suffixes.

    Args:
        at_least: images that every class must have.

    Raises:
        UserError: there is no class folder, or a class has too few images.
    """
    from torchvision.datasets.folder import find_classes, make_dataset

    try:
        names = [name for name in find_classes(root)[0] if not name.startswith(".")]
        positions = {name: position for position, name in enumerate(names)}
        samples = make_dataset(root, positions, is_valid_file=_is_image, allow_empty=True)
    except (OSError, ValueError) as error:  # a ValueError where all folders are hidden
        raise UserError(
            f"{root}: no class folders ({error}); expected "
            f"{root}/<class>/<image>{{{','.join(SUFFIXES)}}}"
        ) from error
    samples.sort(key=lambda sample: (sample[1], sample[0]))
    y = np.array([position for _, position in samples], np.int64)
    counts = np.bincount(y, minlength=len(names))
    short = [f"{root / names[i]}: {counts[i]} images" for i in np.flatnonzero(counts < at_least)]
    if short:
        remedy = (
            f"at least {at_least} needed; add some ({', '.join(SUFFIXES)}), or remove the class"
        )
        raise UserError(*(f"{place}, {remedy}" for place in short[:_MOST_PROBLEMS]))
    return Labelled([file for file, _ in samples], y, names)


def _is_image(file: str) -> bool:
    name = os.path.basename(file).lower()
    return name.endswith(SUFFIXES) and not name.startswith(".")


def decode_images(
    files: Sequence[str | Path],
    size: int | None = None,
    channels: int | None = None,
    fit: Fit = "stretch",
) -> np.ndarray:
    """Return [n, C, H, W] uint8 of image files with 8 bits a channel.

    Args:
        size: side of the square result, in pixels; None keeps the images, which must then agree.
        channels: 1 or 3 converts (colours weighted by ITU-R 601-2, transparency dropped); None
            keeps, and the images must agree.
        fit: "stretch" to the square, or "crop" the largest square from the middle.

    Raises:
        UserError: naming every unreadable or odd file (the first 10) and the remedy.
    """
    out: np.ndarray | None = None
    problems: list[str] = []
    for i, file in enumerate(files):
        try:
            pixels = _pixels(file, size, channels, fit)
            if out is None:
                out = _room(len(files), pixels.shape, file)
                first = file
            _check_alike(pixels, out.shape[1:], file, first)
            out[i] = pixels
        except _Odd as error:
            problems.append(str(error))
            if len(problems) == _MOST_PROBLEMS:
                break
    if problems or out is None:
        raise UserError(*(problems or ["there are no images to decode"]))
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))


class _Odd(Exception):
    """A file that is not as it should be; the text names it and the remedy."""


def _pixels(file: str | Path, size: int | None, channels: int | None, fit: Fit) -> np.ndarray:
    """Return [H, W, C] of one file."""
    from PIL import Image

    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise _Odd(
                    f"{file}: {image.width}x{image.height} pixels are too many; scale it down"
                )
            if size is not None:
                # a JPEG is decoded at a fraction of its size where that is enough
                image.draft(None, (2 * size, 2 * size))
            image.load()
            pixels = np.asarray(_resized(_converted(image, channels, file), size, fit))
    except _Odd:
        raise
    except Exception as error:  # the readers of damaged files raise whatever they stumble over
        raise _Odd(
            f"{file}: not a readable image ({type(error).__name__}: {error}); replace or remove it"
        ) from error
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _converted(image: Image, channels: int | None, file: str | Path) -> Image:
    if image.mode[0] in "IF":
        raise _Odd(f"{file}: more than 8 bits a channel (mode {image.mode}); save it with 8")
    if channels is not None:
        return image if image.mode == _MODE[channels] else image.convert(_MODE[channels])
    if image.mode not in _MODE.values():
        raise _Odd(
            f"{file}: neither grey nor RGB (mode {image.mode}); set 'channels' to 1 or 3 to convert"
        )
    return image


def _resized(image: Image, size: int | None, fit: Fit) -> Image:
    from PIL import Image as pil
    from PIL import ImageOps

    if size is None or image.size == (size, size):
        return image
    if fit == "crop":
        return ImageOps.fit(image, (size, size), pil.Resampling.BILINEAR)
    return image.resize((size, size), pil.Resampling.BILINEAR)


def _check_alike(
    pixels: np.ndarray, shape: tuple[int, ...], file: str | Path, first: str | Path
) -> None:
    """Raise ``_Odd`` where an image differs from the first in channels or size."""
    height, width, channels = pixels.shape
    if channels != shape[2]:
        kind = {1: "grey", 3: "RGB"}
        raise _Odd(
            f"{file}: {kind[channels]}, but {first} is {kind[shape[2]]}; set 'channels' to 1 or 3 "
            "to convert them"
        )
    if pixels.shape != shape:
        raise _Odd(
            f"{file}: {width}x{height} pixels, but {first} has {shape[1]}x{shape[0]}; set 'size' "
            "to resize them"
        )


def _room(n: int, shape: tuple[int, ...], file: str | Path) -> np.ndarray:
    """Return an empty [n, H, W, C] array."""
    n_bytes = n * math.prod(shape)
    if n_bytes > _MOST_BYTES:
        raise UserError(
            f"{os.path.dirname(file)}: {n:,} images of {shape[1]}x{shape[0]} pixels need "
            f"{n_bytes / 2**30:.0f} GiB decoded; set a smaller 'size'"
        )
    return np.empty((n, *shape), np.uint8)
