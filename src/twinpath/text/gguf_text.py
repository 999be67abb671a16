"""The text side of a GGUF file."""

from __future__ import annotations

from twinpath.errors import ModelLoadError
from twinpath.model.files import ModelFiles
from twinpath.model.gguf import GgufFile
from twinpath.model.gguf_spec import spec_from_gguf
from twinpath.text.chat_template import ChatTemplate
from twinpath.text.gguf_tokenizer import token_id_of, tokenizer_from_gguf
from twinpath.text.text_model import TextModel
from twinpath.text.tokenizer import Tokenizer

_ENDS = ("eos", "eot", "eom")
#: GGUF files name one or two ends; models stop at these control tokens too. Source: llama.cpp, special_eog_ids.
END_SPELLINGS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
)
#: `general.sampling.*` keys that newer converters copy from generation_config.
_SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def text_from_gguf(files: ModelFiles, override_template: str | None) -> TextModel:
    file = GgufFile(files.path)
    spec = spec_from_gguf(file)
    tokenizer = tokenizer_from_gguf(file)
    if tokenizer.vocab_size != spec.vocab_size:
        message = f"the vocabulary has {tokenizer.vocab_size} tokens, the embedding {spec.vocab_size} rows"
        raise ModelLoadError(f"{files.path}: {message}")
    source = override_template if override_template is not None else file.text("tokenizer.chat_template")
    found = {alias: file.number(f"general.sampling.{key}") for key, alias in _SAMPLING_KEYS.items()}
    own_defaults = {key: value for key, value in found.items() if value is not None}
    return TextModel(
        tokenizer=tokenizer,
        template=None if source is None else ChatTemplate(source, _template_variables(file, tokenizer)),
        stop_token_ids=_stop_ids(file, tokenizer),
        max_model_len=spec.max_position,
        default_sampling={**own_defaults, **files.default_sampling},
    )


def _template_variables(file: GgufFile, tokenizer: Tokenizer) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {variable: token_id_of(file, name, tokenizer.vocab_size) for variable, name in names.items()}
    return {variable: tokenizer.token_text(token_id) for variable, token_id in ids.items() if token_id is not None}


def _stop_ids(file: GgufFile, tokenizer: Tokenizer) -> tuple[int, ...]:
    named = [token_id_of(file, name, tokenizer.vocab_size) for name in _ENDS]
    spelled = [tokenizer.special_tokens.get(spelling) for spelling in END_SPELLINGS]
    return tuple(dict.fromkeys(token_id for token_id in [*named, *spelled] if token_id is not None))
