"""The text side of a Hugging Face directory: tokenizer.json and the small JSON files around it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from twinpath.errors import ModelLoadError
from twinpath.model.files import CONFIG_NAME, ModelFiles
from twinpath.model.spec import ModelSpec
from twinpath.text.chat_template import ChatTemplate
from twinpath.text.text_model import TextModel
from twinpath.text.tokenizer import Tokenizer, TokenizerRules

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
GENERATION_NAME = "generation_config.json"
TEMPLATE_NAMES = ("chat_template.jinja", "chat_template.json")
_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def text_from_directory(files: ModelFiles, override_template: str | None, spec: ModelSpec) -> TextModel:
    directory = files.path
    settings = _read_object(directory / TOKENIZER_CONFIG_NAME)
    tokenizer = tokenizer_from_json(directory / TOKENIZER_NAME, settings, spec.vocab_size)
    source = override_template if override_template is not None else _template_source(directory, settings)
    generation = _read_object(directory / GENERATION_NAME)
    config = _read_object(directory / CONFIG_NAME)
    return TextModel(
        tokenizer=tokenizer,
        template=None if source is None else ChatTemplate(source, _template_variables(settings)),
        stop_token_ids=_stop_ids(tokenizer, settings, generation, config),
        max_model_len=spec.max_position,
        default_sampling={**_sampling(generation), **files.default_sampling},
    )


def tokenizer_from_json(path: Path, settings: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """`settings` is tokenizer_config.json's content. Raises: ModelLoadError."""
    if not path.is_file():
        raise ModelLoadError(f"{path}: is missing (a tokenizer.model alone is not supported)")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{path}: cannot be read: {str(error)[:300]}") from None
    if backend.get_vocab_size() > vocab_size:
        message = f"the tokenizer has {backend.get_vocab_size()} tokens, the model {vocab_size}"
        raise ModelLoadError(f"{path}: {message}")
    # Truncation and padding are habits of training, not of serving.
    backend.no_truncation()
    backend.no_padding()
    return Tokenizer(backend, _rules(path, backend, settings, vocab_size))


def _rules(path: Path, backend: tokenizers.Tokenizer, settings: Mapping[str, Any], vocab_size: int) -> TokenizerRules:
    decoder = _state(backend.decoder)
    parts = decoder.get("decoders", [decoder])
    kinds = {part.get("type") for part in parts}
    bos_id = _bos_id(backend, settings)
    if "ByteLevel" in kinds:
        return TokenizerRules("byte_level", bos_id, vocab_size)
    if not kinds & {"Metaspace", "ByteFallback"}:
        raise ModelLoadError(
            f"{path}: decoder {sorted(map(str, kinds))} is not supported, expected ByteLevel or SentencePiece's"
        )
    strips = any(part.get("type") == "Strip" and part.get("start") for part in parts) or any(
        part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never" for part in parts
    )
    splitter = _state(backend.pre_tokenizer)
    first_only = splitter.get("type") == "Metaspace" and splitter.get("prepend_scheme") == "first"
    if first_only:
        # Segments are encoded one by one here, and each would be "first" to the library.
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=splitter.get("split", True))
    return TokenizerRules(
        "sentencepiece", bos_id, vocab_size, dummy_prefix="first" if first_only else "none", strips_leading_space=strips
    )


def _state(component: Any) -> dict[str, Any]:
    if component is None:
        return {}
    content = json.loads(component.__getstate__())
    return content if isinstance(content, dict) else {}


def _bos_id(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> int | None:
    """The token that the tokeniser itself puts first; tokenizer_config may forbid or demand it."""
    with_special = backend.encode("a", add_special_tokens=True).ids
    plain = backend.encode("a", add_special_tokens=False).ids
    wanted = settings.get("add_bos_token")
    if wanted is False:
        return None
    if len(with_special) > len(plain) and with_special[:1] != plain[:1]:
        return int(with_special[0])
    name = _spelling(settings.get("bos_token"))
    return backend.token_to_id(name) if wanted and name is not None else None


def _spelling(token: Any) -> str | None:
    """Special tokens are written as a string or as an object with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _template_variables(settings: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: _spelling(settings.get(name)) for name in _VARIABLES}
    return {name: value for name, value in named.items() if value is not None}


def _template_source(directory: Path, settings: Mapping[str, Any]) -> str | None:
    jinja, wrapped = (directory / name for name in TEMPLATE_NAMES)
    if jinja.is_file():
        try:
            return jinja.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{jinja}: cannot be read: {error}") from None
    source = _read_object(wrapped).get("chat_template") or settings.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
        source = named.get("default") or named.get("tool_use")
    if source is not None and not isinstance(source, str):
        raise ModelLoadError(f"{directory / TOKENIZER_CONFIG_NAME}: 'chat_template' must be text")
    return source


def _stop_ids(tokenizer: Tokenizer, settings: Mapping[str, Any], *sources: Mapping[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    for source in sources:
        ids = source.get("eos_token_id")
        found += [
            i for i in (ids if isinstance(ids, list) else [ids]) if type(i) is int and 0 <= i < tokenizer.vocab_size
        ]
    name = _spelling(settings.get("eos_token"))
    named = tokenizer.token_id(name) if name is not None else None
    return tuple(dict.fromkeys([*found, *([named] if named is not None else [])]))


def _sampling(generation: Mapping[str, Any]) -> dict[str, float]:
    """Values that are numbers; `do_sample: false` means greedy."""
    found = {key: generation.get(key) for key in _SAMPLING_KEYS}
    values = {
        k: v for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)
    }
    return (
        values | {"temperature": 0.0}
        if generation.get("do_sample") is False and "temperature" not in values
        else values
    )


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file's object; {} when the file is not there."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object")
    return content
