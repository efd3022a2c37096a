"""Handwritten digits and characters: scikit-learn's digits, MNIST and Fashion-MNIST, FEMNIST."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedbench.core import Data, Dataset, UserError
from fedbench.core.toolkit import Arrays, Remote, data_folder, fetch
from fedbench.plugins.datasets.imageset import ImageSet, Statistics
from fedbench.plugins.datasets.reading import parsing
from fedbench.plugins.datasets.sampling import Noise, Part, number_clients, with_canaries


class Digits(Dataset):
    """1,797 8x8 images, pixel values 0..16 scaled to 0..1; split at random by seed.

    ``label_noise`` mislabels a share of train and hold-out, never of test: clean digits hardly
    leak.
    """

    default_model = "mlp"
    licence = "CC BY 4.0"
    citation = (
        "E. Alpaydin, C. Kaynak: Optical recognition of handwritten digits. UCI, 1998 "
        "(scikit-learn's copy)"
    )
    home = "https://archive.ics.uci.edu/dataset/80"
    size_mb = 0.0

    class Params(Noise):
        test: int = Field(397, ge=1, le=1795, description="test samples, clean labels")
        holdout: int = Field(
            200, ge=1, le=1795, description="outside non-members, never trained on"
        )

    @classmethod
    def here(cls) -> str | bool:
        """Return where the data lie: they come with scikit-learn."""
        return "built in"

    def load(self, seed: int) -> Data:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        p = self.params
        if p.test + p.holdout >= len(x):
            raise UserError(
                f"digits has {len(x)} samples: test ({p.test}) + holdout ({p.holdout}) leave none "
                "to train on; lower them"
            )
        rng = np.random.Generator(np.random.Philox([seed, 0xD161]))
        order = rng.permutation(len(x))
        x = (x[order] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
        y = y[order].astype(np.int64)
        x_parts, y_parts = (np.split(array, [p.test, p.test + p.holdout]) for array in (x, y))
        test, holdout, train = zip(x_parts, y_parts, strict=True)
        return with_canaries(train, test, holdout, p.label_noise, 10, (rng, rng))


# --- MNIST and Fashion-MNIST ----------------------------------------------------------------------


class Mnist(ImageSet):
    """70,000 handwritten digits, 28x28 grey, 10 classes; official split 60,000 / 10,000.

    Read from ``MNIST/raw``, packed (.gz, downloaded, checksum verified) or unpacked.
    """

    name = "mnist"
    n_classes = 10
    expected = (60_000, 10_000)
    size_mb = 11.6
    home = "http://yann.lecun.com/exdb/mnist/"
    licence = "CC BY-SA 3.0"
    citation = (
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document "
        "recognition. Proceedings of the IEEE, 1998"
    )
    folder: ClassVar[str] = "MNIST/raw"
    mirrors: ClassVar[tuple[str, ...]] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    # stem of the file's name, md5 and bytes of its packed form
    files: ClassVar[tuple[tuple[str, str, int], ...]] = (
        ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    )
    # computed from the 60,000 training images
    published: ClassVar[dict[str, Statistics]] = {"own": ((0.1307,), (0.3081,))}

    @classmethod
    def here(cls) -> str | bool:
        if all(cls._file(stem).exists() for stem, _, _ in cls.files):
            return str(data_folder() / cls.folder)
        return False

    @classmethod
    def _file(cls, stem: str) -> Path:
        """Return the path of a file as it lies here: unpacked, or else packed."""
        file = data_folder() / cls.folder / stem
        return file if file.exists() else file.with_name(f"{stem}.gz")

    def _arrays(self) -> Arrays:
        files = [self._fetched(*file) for file in self.files]
        return self._once(files, files[0].parent, self._read)

    def _fetched(self, stem: str, md5: str, size: int) -> Path:
        file = self._file(stem)
        if file.name == stem:
            return file
        urls = tuple(f"{mirror}/{file.name}" for mirror in self.mirrors)
        return fetch(Remote(file.name, urls, f"md5:{md5}", size), file.parent)

    def _read(self, files: Sequence[Path]) -> Arrays:
        return self._parts(files[0].parent, read_idx(*files[:2]), read_idx(*files[2:]))


class FashionMnist(Mnist):
    """70,000 pictures of clothes, 28x28 grey, 10 classes; official split 60,000 / 10,000.

    Read from ``FashionMNIST/raw``, packed (.gz, downloaded, checksum verified) or unpacked.
    """

    name = "fashion-mnist"
    size_mb = 30.9
    home = "https://github.com/zalandoresearch/fashion-mnist"
    licence = "MIT"
    citation = (
        "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking "
        "machine learning algorithms. arXiv:1708.07747, 2017"
    )
    folder = "FashionMNIST/raw"
    mirrors = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",)
    files = (
        ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    )
    # computed from the 60,000 training images
    published: ClassVar[dict[str, Statistics]] = {"own": ((0.2860,), (0.3530,))}


def read_idx(images: Path, labels: Path) -> Part:
    """Parse a pair of idx files, gzipped or not, with torchvision."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    with (
        parsing(f"{images} or {labels.name}"),
        _plain(images) as image_file,
        _plain(labels) as label_file,
    ):
        return read_image_file(image_file).numpy()[:, None], read_label_file(label_file).numpy()


@contextmanager
def _plain(file: Path) -> Iterator[str]:
    """Yield the path of a file, of a temporary unpacked one where it is gzipped."""
    if file.suffix != ".gz":
        yield str(file)
        return
    with gzip.open(file) as content, tempfile.NamedTemporaryFile() as unpacked:
        shutil.copyfileobj(content, unpacked)
        unpacked.flush()
        yield unpacked.name


# --- FEMNIST --------------------------------------------------------------------------------------


class Femnist(ImageSet):
    """814,255 handwritten digits and letters, 28x28 grey, 62 classes: 0-9, A-Z, a-z; ink 255 on 0,
    upright; official split 697,932 / 116,323.

    EMNIST ByClass: LEAF's characters of NIST's, but blurred and scaled to fill the frame. Read from
    ``EMNIST/raw``, where torchvision keeps it too: the archive (downloaded, checksum verified) or
    its unpacked files. They hold each image with rows and columns exchanged: undone here. They do
    not say who wrote an image: clients are made by the setting's partition, and a writer may be in
    several; ``femnist-writers`` has the writers.
    """

    name = "femnist"
    default_model = "leaf-cnn"
    n_classes = 62
    expected = (697_932, 116_323)
    size_mb = 561.8
    home = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
    licence = "none stated, from NIST Special Database 19"
    citation = (
        "S. Caldas et al.: LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018; G. "
        "Cohen, S. Afshar, J. Tapson, A. van Schaik: EMNIST: extending MNIST to handwritten "
        "letters. IJCNN, 2017"
    )
    folder: ClassVar[str] = "EMNIST/raw"
    files: ClassVar[tuple[str, ...]] = (
        "emnist-byclass-train-images-idx3-ubyte",
        "emnist-byclass-train-labels-idx1-ubyte",
        "emnist-byclass-test-images-idx3-ubyte",
        "emnist-byclass-test-labels-idx1-ubyte",
    )
    remote: ClassVar[Remote] = Remote(
        "gzip.zip",
        ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        561_753_746,
    )

    @classmethod
    def _places(cls) -> list[Path]:
        folder = data_folder() / cls.folder
        return [folder / cls.files[0], folder / cls.remote.name]

    def _arrays(self) -> Arrays:
        folder = data_folder() / self.folder
        if self._places()[0].exists():
            return self._once([folder / file for file in self.files], folder, self._read)
        return self._once([fetch(self.remote, folder)], folder, self._read_archive)

    def _read_archive(self, files: Sequence[Path]) -> Arrays:
        members = [f"gzip/{file}.gz" for file in self.files]
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(files[0]) as archive:
            archive.extractall(folder, members)
            return self._read([Path(folder, member) for member in members])

    def _read(self, files: Sequence[Path]) -> Arrays:
        parts = []
        for images, labels in (files[:2], files[2:]):
            x, y = read_idx(images, labels)
            parts.append((np.ascontiguousarray(x.swapaxes(2, 3)), y))
        return self._parts(files[0].parent, *parts)


class WritersFemnist(ImageSet):
    """LEAF's FEMNIST, 28x28 grey, 62 classes, with its writers as clients (``partition: given``).

    Brought by you: LEAF's ``preprocess.sh -s niid --sf 0.05 -k 0 -t sample`` draws a share of the
    writers and splits the images of each; its ``data/train/*.json`` and ``data/test/*.json`` lie in
    ``femnist/``. Ink is 255 on 0. Hold-outs are of the writers' own test images.
    """

    name = "femnist-writers"
    default_model = "leaf-cnn"
    n_classes = 62
    home = "https://github.com/TalwalkarLab/leaf"
    licence = "none stated, from NIST Special Database 19; LEAF's scripts BSD 2-Clause"
    citation = "S. Caldas et al.: LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018"

    @classmethod
    def _places(cls) -> list[Path]:
        return [data_folder() / "femnist" / "train"]

    def _arrays(self) -> Arrays:
        folder = data_folder() / "femnist"
        train, test = (sorted(folder.glob(f"{part}/*.json")) for part in ("train", "test"))
        if not (train and test):
            raise UserError(
                f"femnist-writers: no json files in {folder}/train and {folder}/test: run "
                f"'preprocess.sh -s niid --sf 0.05 -k 0 -t sample' in data/femnist of {self.home} "
                f"and put its data/train and data/test there"
            )

        def read(files: Sequence[Path]) -> Arrays:
            parts = [_read_writers(files[: len(train)]), _read_writers(files[len(train) :])]
            clients = number_clients(*(writers for _, writers in parts))
            return self._parts(folder, *(part for part, _ in parts)) | clients

        return self._once([*train, *test], folder, read)


def _read_writers(files: Sequence[Path]) -> tuple[Part, np.ndarray]:
    """Parse LEAF's files, in which a writer has ``x``, lists of 784 numbers 0..1 (1 is white), and
    ``y``.

    Returns:
        images and labels, and the writer's name of each.
    """
    images, labels, writers = [], [], []
    for file in files:
        with parsing(file, "prepare LEAF's data again"):
            for writer, samples in json.loads(file.read_bytes())["user_data"].items():
                x = np.array(samples["x"], np.float64).reshape(-1, 1, 28, 28)
                if not ((x >= 0) & (x <= 1)).all():
                    raise ValueError(f"writer {writer!r} has pixels outside 0..1")
                images.append(np.rint(255 * (1 - x)).astype(np.uint8))
                labels.append(np.array(samples["y"], np.int64))
                writers += [writer] * len(x)
    return (np.concatenate(images), np.concatenate(labels)), np.array(writers)
