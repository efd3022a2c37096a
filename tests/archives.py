"""Archives and image files that a test puts on the disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from PIL import Image


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("top/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)  # left out when it is unpacked
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def zip_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in members.items():
            z.writestr(name, content)
    return path


def image_file(image: Image.Image, kind: str = "PNG") -> bytes:
    """The content of a file of that format."""
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()
