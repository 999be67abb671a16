"""The GGUF reader against the `gguf` package, and against every defect we could think of."""

from __future__ import annotations

import resource
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.gguf_bytes import ARRAY, U32, Gguf, Tensor, field_bytes, string, string_field, strings_field, u32_field
from twinpath.errors import ModelLoadError
from twinpath.model.gguf import GgufFile
from twinpath.model.tensors import WeightType

TOKENS = ["a", "", "▁new", "\n", "ünï", "😀" * 40]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def read(path: Path, content: bytes) -> GgufFile:
    path.write_bytes(content)
    return GgufFile(path)


def defect(path: Path, content: bytes) -> str:
    """The one line that the reader says about a wrong file; it names the file."""
    with pytest.raises(ModelLoadError) as caught:
        read(path, content)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_reads_what_the_gguf_package_writes(path: Path) -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((6, 64)).astype(np.float32)
    quantized = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q4_1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(7)
    writer.add_float32("x.float", 0.25)
    writer.add_bool("x.bool", True)
    writer.add_int64("x.negative", -(1 << 40))
    writer.add_token_list(TOKENS)
    writer.add_array("x.numbers", [1.5, -2.5])
    writer.add_tensor("plain", matrix)
    writer.add_tensor("vector", matrix[0])
    writer.add_tensor("quantized", quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GgufFile(path)
    assert file.version == 3
    assert file.text("general.architecture") == "llama"
    assert file.integer("llama.block_count") == 7
    assert file.number("x.float") == 0.25
    assert file.number("llama.block_count") == 7.0
    assert file.flag("x.bool") is True
    assert file.integer("x.negative") == -(1 << 40)
    assert file.strings("tokenizer.ggml.tokens") == TOKENS
    assert file.numbers("x.numbers").tolist() == [1.5, -2.5]
    assert file.text("absent") is None and file.strings("absent") is None
    assert file.tensor("plain").data.view("<f4").tolist() == matrix.tolist()
    assert (file.tensor("vector").rows, file.tensor("vector").cols) == (1, 64)
    tensor = file.tensor("quantized")
    assert (tensor.type, tensor.rows, tensor.cols) == (WeightType.Q4_1, 6, 64)
    assert tensor.data.tobytes() == quantized.tobytes()


@pytest.mark.model
def test_default_model_as_the_gguf_package_reads_it(default_model_path: Path) -> None:
    file, right = GgufFile(default_model_path), gguf.GGUFReader(default_model_path)
    assert set(file.fields) == {name for name in right.fields if not name.startswith("GGUF.")}
    assert file.strings("tokenizer.ggml.tokens") == right.fields["tokenizer.ggml.tokens"].contents()
    assert file.text("tokenizer.chat_template") == right.fields["tokenizer.chat_template"].contents()
    assert len(file.tensors) == len(right.tensors) == 272
    for tensor in right.tensors[::9]:
        ours = file.tensor(tensor.name)
        assert ours.type == tensor.tensor_type.name
        assert ours.data.tobytes() == tensor.data.tobytes()


def test_version_2_and_other_alignment(path: Path) -> None:
    fields = [u32_field("general.alignment", 64)]
    file = read(path, Gguf(fields, [Tensor(), Tensor("u", data=b"\1" * 16)], version=2, alignment=64).build())
    assert file.version == 2
    assert file.tensor("u").data.tobytes() == b"\1" * 16


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"GGUF", "truncated"),
        (Gguf(version=1).build(), "version 1 is not supported"),
        (Gguf(version=4).build(), "version 4 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (Gguf(num_fields=1 << 60).build(), "cannot fit"),
        (Gguf(num_tensors=1 << 60).build(), "cannot fit"),
        (Gguf([u32_field("a", 1), u32_field("a", 2)]).build(), "'a' occurs twice"),
        (Gguf([u32_field("", 1) + bytes(20)]).build(), "metadata key 0 is 0 bytes long"),
        (Gguf([field_bytes("a", 77, b"\0" * 8)]).build(), "'a' has unknown type 77"),
        (Gguf([field_bytes("a", ARRAY, struct.pack("<IQ", ARRAY, 0))]).build(), "unsupported item type 9"),
        (Gguf([field_bytes("a", 8, struct.pack("<Q", 1 << 62))]).build(), "needs 4611686018427387904 bytes"),
        (Gguf([field_bytes("a", ARRAY, struct.pack("<IQ", 8, 1 << 61))]).build(), "claims"),
        (Gguf([field_bytes("a", ARRAY, struct.pack("<IQ", U32, 1 << 62))]).build(), "needs"),
        (
            Gguf([field_bytes("a", ARRAY, struct.pack("<IQ", 8, 2) + string("x") + b"\xff" * 8)]).build(),
            "run past the end",
        ),
        (Gguf([field_bytes("a", 8, string(b"\xff\xfe"))]).build(), "'a' is not UTF-8"),
        (Gguf([u32_field("general.alignment", 24)]).build(), "general.alignment is 24"),
        (Gguf([u32_field("general.alignment", 0)]).build(), "general.alignment is 0"),
        (Gguf([string_field("general.alignment", "32")]).build(), "'general.alignment' must be an integer"),
        (Gguf([field_bytes("split.count", 2, b"\3\0")]).build(), "one of 3 parts"),
        (Gguf(tensors=[Tensor(), Tensor()]).build(), "tensor 't' occurs twice"),
        (Gguf(tensors=[Tensor(dims=())], tail=bytes(64)).build(), "has 0 dimensions"),
        (Gguf(tensors=[Tensor(dims=(1, 1, 1, 1, 4))]).build(), "has 5 dimensions"),
        (Gguf(tensors=[Tensor(dims=(0,))]).build(), "at least one element"),
        (Gguf(tensors=[Tensor(type=2, dims=(33,))]).build(), "a multiple of 32"),
        (Gguf(tensors=[Tensor(type=10, dims=(256,))]).build(), "type Q2_K, supported are F32"),
        (Gguf(tensors=[Tensor(type=999)]).build(), "type 999"),
        (Gguf(tensors=[Tensor(offset=8)]).build(), "offset 8, not a multiple of the alignment 32"),
        (Gguf(tensors=[Tensor(offset=1 << 60)]).build(), "the file has"),
        (Gguf(tensors=[Tensor(dims=(1 << 62, 1 << 62))]).build(), "the file has"),
        (Gguf(tensors=[Tensor(dims=(16,), data=bytes(64)), Tensor("u", offset=32)]).build(), "'t' and 'u' overlap"),
        (Gguf(tensors=[Tensor(data=bytes(12))]).build(), "'t' occupies"),
    ],
)
def test_defects_are_named(path: Path, content: bytes, says: str) -> None:
    assert says in defect(path, content)


def test_wrong_kinds_and_missing_tensors_are_named(path: Path) -> None:
    fields = [u32_field("n", 1), strings_field("s", ["x"]), string_field("t", "y")]
    file = read(path, Gguf(fields, [Tensor("cube", (2, 2, 2), data=bytes(32))]).build())
    for ask, says in [
        (lambda: file.text("n"), "'n' must be a string"),
        (lambda: file.integer("t"), "'t' must be an integer"),
        (lambda: file.number("t"), "'t' must be a float"),
        (lambda: file.flag("n"), "'n' must be a bool"),
        (lambda: file.strings("n"), "'n' must be an array"),
        (lambda: file.numbers("s"), "'s' must be an array of numbers"),
        (lambda: file.tensor("gone"), "'gone' is missing"),
        (lambda: file.tensor("cube"), "expected a matrix or a vector"),
    ]:
        with pytest.raises(ModelLoadError, match=says):
            ask()


def test_array_items_that_are_not_text_are_found_when_asked_for(path: Path) -> None:
    items = struct.pack("<IQ", 8, 2) + string("ok") + string(b"\xff")
    file = read(path, Gguf([field_bytes("a", ARRAY, items)]).build())
    with pytest.raises(ModelLoadError, match=r"'a' item 1 is not UTF-8"):
        file.strings("a")


def test_what_is_not_a_readable_file(tmp_path: Path) -> None:
    for path, says in [(tmp_path / "gone.gguf", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(ModelLoadError, match=says):
            GgufFile(path)


def small_file() -> bytes:
    fields = [
        string_field("general.architecture", "llama"),
        u32_field("llama.block_count", 2),
        field_bytes("f", 12, struct.pack("<d", 1.5)),
        strings_field("tokens", TOKENS),
        field_bytes("numbers", ARRAY, struct.pack("<IQ5i", 5, 5, *range(5))),
    ]
    tensors = [Tensor("a", (32, 3), 3, bytes(range(60))), Tensor("b", (4,)), Tensor("c", (2, 2))]
    return Gguf(fields, tensors).build()


SMALL = small_file()


def use_everything(file: GgufFile) -> None:
    for name in file.tensors:
        file.tensor(name)
    file.strings("tokens")
    file.numbers("numbers")


@pytest.fixture
def little_memory() -> object:
    """An allocation of more than 1 GiB beyond what is in use now fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_truncated_anywhere(path: Path, little_memory: object) -> None:
    for length in range(len(SMALL)):
        defect(path, SMALL[:length])


def test_every_byte_wrong_in_several_ways(path: Path, little_memory: object) -> None:
    """Still a GGUF file that can be used, or one clear error; never another exception, a hang or a huge allocation."""
    for position in range(0, len(SMALL), 2):
        for value in {0, 0xFF, SMALL[position] ^ 1, SMALL[position] ^ 0x40}:
            accepts_or_refuses(path, SMALL[:position] + bytes([value]) + SMALL[position + 1 :])


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(SMALL) - 8), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6)
)
def test_random_damage(path: Path, edits: list[tuple[int, bytes]]) -> None:
    content = bytearray(SMALL)
    for position, patch in edits:
        content[position : position + len(patch)] = patch
    accepts_or_refuses(path, bytes(content))


def accepts_or_refuses(path: Path, content: bytes) -> None:
    try:
        use_everything(read(path, content))
    except ModelLoadError as error:
        assert str(path) in str(error) and "\n" not in str(error)
