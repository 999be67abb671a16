"""The one door to a model's spec and weights, whatever its files are.

Reading the spec and opening the weights checks names, shapes and formats of every tensor; bytes are touched when used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from twinpath.errors import ModelLoadError
from twinpath.model.dequant import dequantize
from twinpath.model.files import CONFIG_NAME, ModelFiles
from twinpath.model.gguf import GgufFile
from twinpath.model.gguf_spec import spec_from_gguf
from twinpath.model.hf_config import spec_from_config
from twinpath.model.safetensors import SafetensorsFile, open_directory
from twinpath.model.spec import ModelSpec
from twinpath.model.tensors import BLOCK_LAYOUT, Weights, WeightTensor, WeightType, quoted
from twinpath.model.weight_names import Shape, gguf_name, hf_name, weight_shapes

#: Tensors a GGUF may hold that are not weights of the decoder (rope_freqs is part of the spec).
_GGUF_IGNORED = ("rope_freqs.weight",)
#: Prefixes that a multimodal checkpoint puts before its text model, newest first.
_HF_PREFIXES = ("", "model.language_model.", "language_model.")
_HF_IGNORED_PARTS = ("vision_tower.", "multi_modal_projector.")


def read_spec(files: ModelFiles) -> ModelSpec:
    """Raises: ModelLoadError when the architecture or a feature is unsupported, or numbers contradict each other."""
    if files.format == "gguf":
        spec = spec_from_gguf(GgufFile(files.path))
    else:
        spec = spec_from_config(files.path / CONFIG_NAME)
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(f"{files.path}: {spec.num_heads} heads cannot share {spec.num_kv_heads} key-value heads")
    if spec.head_dim % 2:
        raise ModelLoadError(f"{files.path}: the head size {spec.head_dim} is odd")
    return spec


def load_weights(files: ModelFiles, spec: ModelSpec) -> Weights:
    """Canonical name -> tensor, mapped; nothing is read until a tensor is asked for (and it is not kept afterwards).

    Raises: ModelLoadError naming the first tensor that is missing, unexpected or of a wrong shape.
    """
    if files.format == "gguf":
        return _gguf_weights(GgufFile(files.path), spec)
    return _safetensors_weights(files, spec)


class MappedWeights(Mapping[str, WeightTensor]):
    """Makes a tensor from the mapping each time it is asked for."""

    def __init__(self, loaders: Mapping[str, Callable[[], WeightTensor]]) -> None:
        self._loaders = loaders

    def __getitem__(self, name: str) -> WeightTensor:
        return self._loaders[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


def _gguf_weights(file: GgufFile, spec: ModelSpec) -> Weights:
    loaders: dict[str, Callable[[], WeightTensor]] = {}
    for name, shape in weight_shapes(spec).items():
        tensor = file.tensor(gguf_name(name))
        _check_shape(str(file.path), tensor, shape)
        loaders[name] = _gguf_loader(file, name, spec)
    known = {gguf_name(name) for name in loaders} | set(_GGUF_IGNORED)
    _refuse_extra(str(file.path), [name for name in file.tensors if name not in known])
    return MappedWeights(loaders)


def _gguf_loader(file: GgufFile, name: str, spec: ModelSpec) -> Callable[[], WeightTensor]:
    part = name.rpartition(".")[2]
    heads = {"q": spec.num_heads, "q_bias": spec.num_heads, "k": spec.num_kv_heads, "k_bias": spec.num_kv_heads}.get(
        part
    )

    def load() -> WeightTensor:
        tensor = file.tensor(gguf_name(name))
        tensor = WeightTensor(name, tensor.type, tensor.rows, tensor.cols, tensor.data)
        return _rotate_half_order(tensor, heads) if heads and spec.family == "llama" else tensor

    return load


def _rotate_half_order(tensor: WeightTensor, num_heads: int) -> WeightTensor:
    """Undo llama.cpp's row order.

    It stores the two halves of each head interleaved: row 2i is i, row 2i + 1 is i + half.

    Rows are moved whole, so any block format survives as it is. A bias has its rows along `cols`.
    """
    num_rows = tensor.rows if tensor.rows > 1 else tensor.cols
    rows = tensor.data.reshape(num_heads, num_rows // num_heads // 2, 2, -1)
    data = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(tensor.data.shape)
    return WeightTensor(tensor.name, tensor.type, tensor.rows, tensor.cols, data)


def _safetensors_weights(files: ModelFiles, spec: ModelSpec) -> Weights:
    where, opened = str(files.path), open_directory(files.path)
    prefix = _text_prefix(opened)
    names = {name: _prefixed(hf_name(name, spec), prefix) for name in weight_shapes(spec)}
    loaders: dict[str, Callable[[], WeightTensor]] = {}
    for name, shape in weight_shapes(spec).items():
        if names[name] not in opened:
            raise ModelLoadError(f"{where}: tensor '{names[name]}' is missing")
        file = opened[names[name]]
        _check_shape(str(file.path), file.tensor(names[name]), shape)
        loaders[name] = _safetensors_loader(file, names[name], name, spec)
    known = set(names.values())
    extra = [name for name in opened if name not in known and not _is_ignored(name, prefix, spec)]
    _refuse_extra(where, extra)
    return MappedWeights(loaders)


def _text_prefix(opened: Mapping[str, SafetensorsFile]) -> str:
    found = (prefix for prefix in _HF_PREFIXES if _prefixed("model.embed_tokens.weight", prefix) in opened)
    return next(found, "")


def _prefixed(name: str, prefix: str) -> str:
    """`model.x` is `language_model.model.x` in older multimodal checkpoints, `model.language_model.x` in newer ones."""
    if prefix == "model.language_model.":
        return prefix + name.removeprefix("model.") if name.startswith("model.") else name
    return prefix + name


def _is_ignored(name: str, prefix: str, spec: ModelSpec) -> bool:
    if name.endswith(".rotary_emb.inv_freq") or (spec.tied_embeddings and name.endswith("lm_head.weight")):
        return True
    return bool(prefix) and any(part in name for part in _HF_IGNORED_PARTS)


def _safetensors_loader(
    file: SafetensorsFile, file_name: str, name: str, spec: ModelSpec
) -> Callable[[], WeightTensor]:
    adds_one = spec.family == "gemma3" and name.endswith("_norm")

    def load() -> WeightTensor:
        tensor = file.tensor(file_name)
        if not adds_one:
            return WeightTensor(name, tensor.type, tensor.rows, tensor.cols, tensor.data)
        factor = dequantize(tensor) + np.float32(1.0)
        return WeightTensor(name, WeightType.F32, tensor.rows, tensor.cols, factor.view(np.uint8))

    return load


def _check_shape(where: str, tensor: WeightTensor, shape: Shape) -> None:
    if (tensor.rows, tensor.cols) != shape:
        raise ModelLoadError(f"{where}: tensor '{tensor.name}' is {[tensor.rows, tensor.cols]}, expected {list(shape)}")
    block, block_bytes = BLOCK_LAYOUT[tensor.type]
    assert tensor.data.shape == (shape[0], shape[1] // block * block_bytes)


def _refuse_extra(where: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ModelLoadError(
            f"{where}: unexpected tensor {quoted(names[0])}{more}: this variant of the architecture is not supported"
        )
