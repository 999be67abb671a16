"""The scripted engine's text side: every byte is a token, and six control tokens make a chat.

It needs no file, so servers and tests that run on scripted tokens need none either.
"""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from twinpath.text.answer import answer_format
from twinpath.text.chat_template import ChatTemplate
from twinpath.text.text_model import TextModel
from twinpath.text.tokenizer import Tokenizer, TokenizerRules, byte_alphabet

#: Ids 256.. in this order.
CONTROL_TOKENS = ("<|end|>", "<|begin|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>")
END_ID, BEGIN_ID = 256, 257
VOCAB_SIZE = 512

CHAT_TEMPLATE = """\
{{- '<|begin|>' -}}
{%- for message in messages -%}
{{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are the bytes; 262..511 exist for the engine and decode to nothing."""
    alphabet = byte_alphabet()
    vocabulary = alphabet | {token: 256 + n for n, token in enumerate(CONTROL_TOKENS)}
    backend = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(CONTROL_TOKENS))
    return Tokenizer(backend, TokenizerRules("byte_level", vocab_size=VOCAB_SIZE))


def byte_model(
    max_model_len: int = 4096,
    chat_template: str | None = None,
    *,
    tool_format: str = "auto",
    reasoning_format: str = "auto",
) -> TextModel:
    """A whole `TextModel` over `byte_tokenizer`."""
    return TextModel(
        tokenizer=byte_tokenizer(),
        template=ChatTemplate(chat_template or CHAT_TEMPLATE),
        stop_token_ids=(END_ID,),
        max_model_len=max_model_len,
        answers=answer_format(chat_template or CHAT_TEMPLATE, tools=tool_format, reasoning=reasoning_format),
    )
