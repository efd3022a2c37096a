"""Helpers of data-set plugins: downloads, archives, decoded images and their cache."""

from fedbench.core.toolkit.arrays import (
    Arrays,
    Labelled,
    cached,
    check_labels,
    class_folders,
    decode_images,
    file_lines,
)
from fedbench.core.toolkit.download import Remote, archive_files, data_folder, fetch, unpack

__all__ = [
    "Arrays",
    "Labelled",
    "Remote",
    "archive_files",
    "cached",
    "check_labels",
    "class_folders",
    "data_folder",
    "decode_images",
    "fetch",
    "file_lines",
    "unpack",
]
