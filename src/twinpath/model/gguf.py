"""A GGUF file, mapped read-only: its metadata and its tensor directory (v2 and v3, little-endian).

Opening walks the header once and copies nothing big: string arrays (a vocabulary has up to 262K entries) stay in the
mapping until somebody asks. Every length is checked against the bytes that are really there before it is used, so a
damaged file ends in one `ModelLoadError` and never in a huge allocation.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from twinpath.errors import ModelLoadError
from twinpath.model.tensors import BLOCK_LAYOUT, WeightTensor, WeightType, quoted

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_NAME_BYTES = 65_535
MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
#: Metadata value type -> numpy dtype; 8 and 9 are string and array.
_SCALARS: Mapping[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

#: ggml's type numbers. Those absent from `WeightType` are named so that the refusal can name them.
_TYPE_NAMES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufArray:
    """A metadata array left in the mapping: `num_items` items of `type` in bytes [start, end)."""

    type: int
    num_items: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor directory.

    `shape` is outermost first (rows, cols); `start` is an absolute file offset.
    """

    name: str
    type: WeightType
    shape: tuple[int, ...]
    start: int
    num_bytes: int


Scalar = str | int | float | bool
T = TypeVar("T", str, int, float, bool)


class GgufFile:
    """An open GGUF file. Views handed out keep the mapping alive; nothing needs closing."""

    def __init__(self, path: Path) -> None:
        """Map and check `path`. Raises: ModelLoadError naming the file, what is wrong and at which byte."""
        self.path = path
        self._map = _map_file(path)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        header = _Cursor(path, self._map)
        num_tensors, num_fields, self.version = _read_header(header)
        self.fields: dict[str, Scalar | GgufArray] = _read_fields(header, num_fields)
        split = self.fields.get("split.count", 1)
        if isinstance(split, int) and split > 1:
            raise ModelLoadError(
                f"{path}: is one of {split} parts of a split GGUF; join them first (llama-gguf-split --merge)"
            )
        self.tensors: dict[str, GgufTensor] = _read_directory(header, num_tensors, self._alignment(header))

    def text(self, key: str) -> str | None:
        return self._scalar(key, str)

    def integer(self, key: str) -> int | None:
        return self._scalar(key, int)

    def number(self, key: str) -> float | None:
        value = self.fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._scalar(key, float)

    def flag(self, key: str) -> bool | None:
        return self._scalar(key, bool)

    def strings(self, key: str) -> list[str] | None:
        """The string array under `key`, decoded now; None when absent."""
        array = self._array(key)
        if array is None:
            return None
        if array.type != _STRING:
            raise self._type_error(key, "an array of strings")
        buffer, offset, items = self._map, array.start, []
        unpack = _U64.unpack_from
        try:
            for _ in range(array.num_items):
                end = offset + 8 + unpack(buffer, offset)[0]
                items.append(buffer[offset + 8 : end].decode())
                offset = end
        except UnicodeDecodeError:
            message = f"{self.path}: metadata '{key}' item {len(items)} is not UTF-8 at byte {offset + 8}"
            raise ModelLoadError(message) from None
        return items

    def numbers(self, key: str) -> NDArray[np.generic] | None:
        """The number (or bool) array under `key` as a view; None when absent."""
        array = self._array(key)
        if array is None:
            return None
        if array.type not in _SCALARS:
            raise self._type_error(key, "an array of numbers")
        return self.bytes[array.start : array.end].view(_SCALARS[array.type])

    def tensor(self, name: str) -> WeightTensor:
        """The tensor `name` as a matrix view [rows, cols] (a vector has one row).

        Raises: ModelLoadError when it is not there.
        """
        entry = self.tensors.get(name)
        if entry is None:
            raise ModelLoadError(f"{self.path}: tensor '{name}' is missing")
        if len(entry.shape) > 2:
            raise ModelLoadError(
                f"{self.path}: tensor {quoted(name)} has shape {list(entry.shape)}, expected a matrix or a vector"
            )
        rows, cols = (1, *entry.shape)[-2:]
        data = self.bytes[entry.start : entry.start + entry.num_bytes].reshape(rows, -1)
        return WeightTensor(name, entry.type, rows, cols, data)

    def _scalar(self, key: str, kind: type[T]) -> T | None:
        value = self.fields.get(key)
        if value is None:
            return None
        if type(value) is not kind:
            raise self._type_error(key, {str: "a string", int: "an integer", float: "a float", bool: "a bool"}[kind])
        return value

    def _array(self, key: str) -> GgufArray | None:
        value = self.fields.get(key)
        if value is None or isinstance(value, GgufArray):
            return value
        raise self._type_error(key, "an array")

    def _type_error(self, key: str, expected: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: metadata '{key}' must be {expected}")

    def _alignment(self, header: _Cursor) -> int:
        alignment = self.integer("general.alignment")
        if alignment is None:
            return DEFAULT_ALIGNMENT
        if alignment < 1 or alignment > 1 << 20 or alignment & (alignment - 1):
            raise header.error(f"general.alignment is {alignment}, expected a power of two")
        return alignment


class _Cursor:
    """Reads little-endian values from a mapping, never past its end."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.offset = 0

    def error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {what} (at byte {self.offset})")

    def take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes`; returns where they start."""
        start = self.offset
        if num_bytes > self.size - start:
            raise self.error(f"truncated or corrupt: {what} needs {num_bytes} bytes, {self.size - start} are left")
        self.offset = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8, what))[0])

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(f"the length of {what}")
        if limit is not None and not 0 < length <= limit:
            raise self.error(f"{what} is {length} bytes long, expected 1 to {limit}")
        start = self.take(length, what)
        try:
            return self.buffer[start : self.offset].decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8") from None

    def skip_strings(self, count: int, what: str) -> None:
        offset, buffer, unpack = self.offset, self.buffer, _U64.unpack_from
        try:
            for _ in range(count):
                offset += 8 + unpack(buffer, offset)[0]
        except (struct.error, OverflowError):
            offset = self.size + 1
        if offset > self.size:
            raise self.error(f"truncated or corrupt: the strings of {what} run past the end of the file")
        self.offset = offset


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ModelLoadError(f"{path}: the file is empty") from None


def _read_header(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.buffer[:4]
    if magic != MAGIC:
        raise cursor.error(f"not a GGUF file: it begins with {magic!r}")
    cursor.take(4, "the magic")
    version = cursor.u32("the version")
    if version in (2 << 24, 3 << 24):
        raise cursor.error("big-endian GGUF is not supported")
    if version not in (2, 3):
        raise cursor.error(f"GGUF version {version} is not supported, expected 2 or 3")
    num_tensors = cursor.u64("the tensor count")
    num_fields = cursor.u64("the metadata count")
    left = cursor.size - cursor.offset
    # Smallest entries: key length + 1-byte key + type + 1-byte value; name length + 1-byte name + rank + one dim + type
    # + offset.
    if num_fields * 14 > left or num_tensors * 33 > left:
        raise cursor.error(
            f"truncated or corrupt: {num_tensors} tensors and {num_fields} metadata entries cannot fit in {left} bytes"
        )
    return num_tensors, num_fields, version


def _read_fields(cursor: _Cursor, count: int) -> dict[str, Scalar | GgufArray]:
    fields: dict[str, Scalar | GgufArray] = {}
    for index in range(count):
        key = cursor.string(f"metadata key {index}", MAX_NAME_BYTES)
        if key in fields:
            raise cursor.error(f"metadata {quoted(key)} occurs twice")
        fields[key] = _read_value(cursor, f"metadata {quoted(key)}")
    return fields


def _read_value(cursor: _Cursor, what: str) -> Scalar | GgufArray:
    kind = cursor.u32(f"the type of {what}")
    if kind == _STRING:
        return cursor.string(what)
    if kind == _ARRAY:
        return _read_array(cursor, what)
    dtype = _SCALARS.get(kind)
    if dtype is None:
        raise cursor.error(f"{what} has unknown type {kind}")
    value: Scalar = np.frombuffer(cursor.buffer, dtype, 1, cursor.take(dtype.itemsize, what))[0].item()
    return value


def _read_array(cursor: _Cursor, what: str) -> GgufArray:
    kind = cursor.u32(f"the item type of {what}")
    count = cursor.u64(f"the item count of {what}")
    start = cursor.offset
    if kind == _STRING:
        if count * 8 > cursor.size - start:
            raise cursor.error(
                f"truncated or corrupt: {what} claims {count} strings, {cursor.size - start} bytes are left"
            )
        cursor.skip_strings(count, what)
    elif kind in _SCALARS:
        cursor.take(count * _SCALARS[kind].itemsize, what)
    else:
        raise cursor.error(f"{what} has unsupported item type {kind}")
    return GgufArray(kind, count, start, cursor.offset)


def _read_directory(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    entries: dict[str, GgufTensor] = {}
    for index in range(count):
        entry = _read_entry(cursor, index, alignment)
        if entry.name in entries:
            raise cursor.error(f"tensor {quoted(entry.name)} occurs twice")
        entries[entry.name] = entry
    data_start = -(-cursor.offset // alignment) * alignment
    placed: dict[str, GgufTensor] = {}
    previous, free_from = "", data_start
    for entry in sorted(entries.values(), key=lambda e: e.start):
        start = data_start + entry.start
        end = start + entry.num_bytes
        if end > cursor.size:
            what = f"tensor {quoted(entry.name)} occupies bytes {start} to {end}, the file has {cursor.size}"
            raise ModelLoadError(f"{cursor.path}: truncated or corrupt: {what}")
        if start < free_from:
            raise ModelLoadError(
                f"{cursor.path}: corrupt: tensors {quoted(previous)} and {quoted(entry.name)} overlap at byte {start}"
            )
        previous, free_from = entry.name, end
        placed[entry.name] = GgufTensor(entry.name, entry.type, entry.shape, start, entry.num_bytes)
    return placed


def _read_entry(cursor: _Cursor, index: int, alignment: int) -> GgufTensor:
    """One directory entry; `start` is still relative to the data section."""
    name = cursor.string(f"the name of tensor {index}", MAX_NAME_BYTES)
    what = f"tensor {quoted(name)}"
    rank = cursor.u32(f"the rank of {what}")
    if not 1 <= rank <= MAX_DIMS:
        raise cursor.error(f"{what} has {rank} dimensions, expected 1 to {MAX_DIMS}")
    shape = tuple(cursor.u64(f"the shape of {what}") for _ in range(rank))[::-1]
    number = cursor.u32(f"the type of {what}")
    type_name = _TYPE_NAMES.get(number, str(number))
    if type_name not in WeightType.__members__:
        raise cursor.error(f"{what} has type {type_name}, supported are {', '.join(WeightType)}")
    weight_type = WeightType[type_name]
    offset = cursor.u64(f"the offset of {what}")
    if offset % alignment:
        raise cursor.error(f"{what} has offset {offset}, not a multiple of the alignment {alignment}")
    block, block_bytes = BLOCK_LAYOUT[weight_type]
    if 0 in shape or shape[-1] % block:
        raise cursor.error(
            f"{what} has shape {list(shape)}, rows of {type_name} hold a multiple of {block} and at least one element"
        )
    num_elements = 1
    for size in shape:
        num_elements *= size
    return GgufTensor(name, weight_type, shape, offset, num_elements // block * block_bytes)
