"""The members of a zip archive as numpy writes them, out of its bytes; whatever is made in another way is left to ``zipfile``."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache

_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_SMALL = 1 << 16  # bytes of a member, packed and not, of which some are kept


class Unusual(Exception):
    """Not as numpy writes it, be it damaged or made by another program."""


class Members:
    """Name -> bytes. ``content``: the whole file. Raises ``Unusual``."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at: dict[str, tuple[int, int, int, int, int, bytes]] = {}
        end = len(content) - _END.size
        if end < 0:
            raise Unusual
        mark, disk, first, here, n, size, at, comment = _END.unpack_from(content, end)
        if mark != b"PK\5\6" or disk or first or here != n or comment or at + size != end:
            raise Unusual
        self._directory = at
        for _ in range(n):
            at = self._entry(at, end)
        if at != end:
            raise Unusual

    def _entry(self, at: int, end: int) -> int:
        if at + _ENTRY.size > end:
            raise Unusual
        (mark, _, _, flags, method, _, _, crc, packed, size, name_length, extra, comment, _, _, _, start) = _ENTRY.unpack_from(
            self._content, at
        )
        end = at + _ENTRY.size + name_length
        name = self._content[at + _ENTRY.size : end]
        if mark != b"PK\1\2" or flags or method not in (_STORED, _DEFLATED) or extra or comment or not name.isascii():
            raise Unusual
        said = name.decode()
        if said in self._at or "\0" in said:
            raise Unusual
        self._at[said] = start, packed, size, crc, method, name
        return end

    @property
    def size(self) -> int:
        """Of all members unpacked, by what the directory says."""
        return sum(entry[2] for entry in self._at.values())

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def size_of(self, name: str) -> int:
        """Of one member unpacked, by what the directory says."""
        return self._at[name][2]

    def read(self, name: str) -> bytes:
        """One member, whole: its size and its checksum are those of the directory."""
        size, crc, method = self._at[name][2:5]
        packed = self._packed(name)
        return (_kept if max(len(packed), size) <= _SMALL else _whole)(packed, method, size, crc)

    def head(self, name: str, most: int) -> bytes:
        """The first bytes of a member, ``most`` or all; of what is packed in more, the rest is not looked at."""
        return _unpacked(self._packed(name), self._at[name][4], self._at[name][2], most)

    def _packed(self, name: str) -> bytes:
        """The bytes of a member as they stand there."""
        start, packed, _, _, method, written = self._at[name]
        if start + _LOCAL.size > self._directory:
            raise Unusual
        mark, _, flags, own_method, _, _, _, _, _, name_length, extra = _LOCAL.unpack_from(self._content, start)
        at = start + _LOCAL.size + name_length + extra
        own_name = self._content[start + _LOCAL.size : start + _LOCAL.size + name_length]
        if mark != b"PK\3\4" or flags or own_method != method or own_name != written or at + packed > self._directory:
            raise Unusual
        return self._content[at : at + packed]


def _whole(packed: bytes, method: int, size: int, crc: int) -> bytes:
    """What is packed, of that size and checksum."""
    found = _unpacked(packed, method, size, size)
    if len(found) != size or zlib.crc32(found) != crc:
        raise Unusual
    return found


_kept = lru_cache(maxsize=256)(_whole)  # who was asked about stands in all files of a seed, byte by byte


def _unpacked(packed: bytes, method: int, size: int, most: int) -> bytes:
    if method == _STORED:
        return packed[:most] if most < size else packed
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = unpacker.decompress(packed, most + (most == size))
    except zlib.error as error:
        raise Unusual from error
    if most == size and (not unpacker.eof or unpacker.unused_data):
        raise Unusual
    return found
