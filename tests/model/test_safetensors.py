"""Safetensors against the package that defines the format, and against damage."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from twinpath.errors import ModelLoadError
from twinpath.model.safetensors import INDEX_NAME, SINGLE_NAME, SafetensorsFile, open_directory
from twinpath.model.tensors import WeightType


def raw(header: object, data: bytes = b"", header_bytes: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if header_bytes is None else header_bytes) + text + data


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "matrix": torch.randn(3, 5),
        "half": torch.randn(2, 4).half(),
        "brain": torch.randn(7).bfloat16(),
        "numbers": torch.arange(3),
    }
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert set(file.names) == set(tensors)
    for name, weight_type, shape in [
        ("matrix", WeightType.F32, (3, 5)),
        ("half", WeightType.F16, (2, 4)),
        ("brain", WeightType.BF16, (1, 7)),
    ]:
        ours = file.tensor(name)
        assert (ours.type, (ours.rows, ours.cols)) == (weight_type, shape)
        assert ours.data.tobytes() == tensors[name].view(torch.uint8).numpy().tobytes()
    with pytest.raises(ModelLoadError, match=r"'numbers' has dtype 'I64', supported are F32, F16, BF16"):
        file.tensor("numbers")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\1\2", "truncated or corrupt"),
        (raw(b"", header_bytes=1 << 60), "a header of 1152921504606846976 bytes"),
        (raw(b"{not json"), "the header is not valid JSON"),
        (raw([]), "must be a JSON object"),
        (raw({"t": 5}), "'t' is malformed"),
        (raw({"t": {"dtype": "F32", "shape": [1]}}), "'t' is malformed"),
        (raw({"t": entry(4, 0, [1])}, bytes(8)), "'t' is malformed"),
        (raw({"t": entry(-4, 0, [1])}, bytes(8)), "'t' is malformed"),
        (raw({"t": entry(0, 4, [10**30])}, bytes(8)), "'t' is malformed"),
        (raw({"t": entry(0, 16, [4])}, bytes(8)), "ends at byte 16 of 8 data bytes"),
        (raw({"t": entry(0, 8, [2]), "u": entry(4, 12, [2])}, bytes(12)), "'t' and 'u' overlap"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError) as caught:
        SafetensorsFile(path)
    assert says in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_shape_and_bytes_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(
        raw({"t": entry(0, 8, [3]), "cube": entry(8, 16, [1, 1, 2]), "none": entry(16, 16, [0])}, bytes(16))
    )
    file = SafetensorsFile(path)
    for name, says in [("t", "spans 8 bytes"), ("cube", "expected a matrix"), ("none", "expected a matrix")]:
        with pytest.raises(ModelLoadError, match=says):
            file.tensor(name)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3), "b": torch.ones(2, 2)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError):
            SafetensorsFile(path)


def shards(directory: Path, weight_map: dict[str, object]) -> None:
    save_file({"a": torch.ones(2)}, directory / "model-1.safetensors")
    save_file({"b": torch.zeros(3)}, directory / "model-2.safetensors")
    (directory / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_found_by_the_index(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
    opened = open_directory(tmp_path)
    assert set(opened) == {"a", "b"}
    assert np.array_equal(opened["b"].tensor("b").data.view("<f4"), np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({}, "'weight_map' is missing or empty"),
        ({"a": "gone.safetensors"}, r"gone\.safetensors: cannot be read"),
        ({"b": "model-1.safetensors"}, r"'b' is not in model-1\.safetensors"),
        ({"a": "../model-1.safetensors"}, "is not the name of a safetensors file"),
        ({"a": "/etc/passwd"}, "is not the name of a safetensors file"),
        ({"a": 7}, "is not the name of a safetensors file"),
    ],
)
def test_wrong_index_is_named(tmp_path: Path, weight_map: dict[str, object], says: str) -> None:
    shards(tmp_path, weight_map)
    with pytest.raises(ModelLoadError, match=says):
        open_directory(tmp_path)


def test_directory_without_safetensors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelLoadError, match=SINGLE_NAME):
        open_directory(tmp_path)
