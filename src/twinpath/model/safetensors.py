"""Safetensors files, mapped read-only: one file or shards named by an index.

Own reader because engines want uint8 views of the mapping, with bf16 left as it lies; the format is an 8-byte length, a
JSON header and the bytes. Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twinpath.errors import ModelLoadError
from twinpath.model.tensors import BLOCK_LAYOUT, WeightTensor, WeightType, quoted

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
#: The format's own limit.
MAX_HEADER_BYTES = 100_000_000


class SafetensorsFile:
    """One mapped file. Views handed out keep the mapping alive."""

    def __init__(self, path: Path) -> None:
        """Map and check `path`. Raises: ModelLoadError."""
        self.path = path
        buffer = _map_file(path)
        header_bytes = int.from_bytes(buffer[:8], "little")
        if len(buffer) < 8 or header_bytes > min(MAX_HEADER_BYTES, len(buffer) - 8):
            raise ModelLoadError(
                f"{path}: truncated or corrupt: a header of {header_bytes} bytes in a file of {len(buffer)}"
            )
        self._data = np.frombuffer(buffer, dtype=np.uint8)[8 + header_bytes :]
        self._entries = self._check(_parse_object(path, buffer[8 : 8 + header_bytes], "the header"))

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name][1]

    def tensor(self, name: str) -> WeightTensor:
        """The tensor as a matrix view [rows, cols]; a vector has one row.

        Raises: ModelLoadError on an unsupported dtype or rank.
        """
        dtype, shape, start, end = self._entries[name]
        if dtype not in ("F32", "F16", "BF16"):
            raise ModelLoadError(
                f"{self.path}: tensor {quoted(name)} has dtype {quoted(dtype)}, supported are F32, F16, BF16"
            )
        if len(shape) not in (1, 2) or 0 in shape:
            raise ModelLoadError(
                f"{self.path}: tensor {quoted(name)} has shape {list(shape)}, expected a matrix or a vector"
            )
        rows, cols = (1, *shape)[-2:]
        weight_type = WeightType[dtype]
        if end - start != rows * cols * BLOCK_LAYOUT[weight_type][1]:
            raise ModelLoadError(
                f"{self.path}: corrupt: tensor {quoted(name)} {dtype} {list(shape)} spans {end - start} bytes"
            )
        return WeightTensor(name, weight_type, rows, cols, self._data[start:end].reshape(rows, -1))

    def _check(self, header: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
        entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            try:
                dtype, shape, (start, end) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
                valid = all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, start, end)) and start <= end
            except (KeyError, TypeError, ValueError):
                valid = False
            if not valid:
                raise ModelLoadError(f"{self.path}: corrupt: the header entry of tensor {quoted(name)} is malformed")
            if end > self._data.size:
                what = f"tensor {quoted(name)} ends at byte {end} of {self._data.size} data bytes"
                raise ModelLoadError(f"{self.path}: truncated or corrupt: {what}")
            entries[name] = (dtype, shape, start, end)
        previous, free_from = "", 0
        for name, (_, _, start, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
            if start < free_from:
                raise ModelLoadError(
                    f"{self.path}: corrupt: tensors {quoted(previous)} and {quoted(name)} overlap at byte {start}"
                )
            previous, free_from = name, end
        return entries


def open_directory(directory: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> the open file that holds it.

    Raises: ModelLoadError when shards are missing or disagree with the index.
    """
    single, index = directory / SINGLE_NAME, directory / INDEX_NAME
    if single.is_file():
        file = SafetensorsFile(single)
        return dict.fromkeys(file.names, file)
    if not index.is_file():
        raise ModelLoadError(f"{directory}: holds neither {SINGLE_NAME} nor {INDEX_NAME}")
    return _open_shards(directory, index)


def _open_shards(directory: Path, index: Path) -> dict[str, SafetensorsFile]:
    weight_map = _parse_object(index, index.read_bytes(), "the index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index}: 'weight_map' is missing or empty")
    files: dict[str, SafetensorsFile] = {}
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelLoadError(f"{index}: {shard!r:.200} is not the name of a safetensors file in this directory")
        if shard not in files:
            files[shard] = SafetensorsFile(directory / shard)
    for name, shard in weight_map.items():
        if name not in files[shard].names:
            raise ModelLoadError(f"{index}: tensor {quoted(name)} is not in {shard}")
    return {name: files[shard] for name, shard in weight_map.items()}


def _parse_object(path: Path, text: bytes, what: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: {what} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: {what} must be a JSON object")
    return content


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ModelLoadError(f"{path}: the file is empty") from None
