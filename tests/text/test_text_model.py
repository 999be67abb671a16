"""Answers whose marks are control tokens of the vocabulary: shown to the parser, and to nobody else."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from twinpath.text.answer import Message, MessageCall, answer_format
from twinpath.text.chat_template import ChatTemplate
from twinpath.text.text_model import TextModel
from twinpath.text.tokenizer import Tokenizer, TokenizerRules, byte_alphabet

SPECIAL = ("</s>", "[TOOL_CALLS]", "[ARGS]", "[INST]", "[THINK]", "[/THINK]")


def model() -> TextModel:
    vocabulary = byte_alphabet() | {token: 256 + n for n, token in enumerate(SPECIAL)}
    backend = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    source = "[INST]{{ messages[0].content }}{% if think %}[THINK]{% endif %}{# [TOOL_CALLS] [ARGS] [/THINK] #}"
    return TextModel(
        tokenizer=Tokenizer(backend, TokenizerRules("byte_level", vocab_size=300)),
        template=ChatTemplate(source),
        stop_token_ids=(256,),
        max_model_len=4096,
        answers=answer_format(source),
    )


def test_marks_that_are_control_tokens_reach_the_parser() -> None:
    text = model()
    answer = '[THINK]Hm.[/THINK]I look.[TOOL_CALLS]sum[ARGS]{}[INST][TOOL_CALLS]sum[ARGS]{"a": 1}'
    ids = text.tokenizer.encode_prompt(answer)
    assert sum(token_id >= 256 for token_id in ids) == 7
    detokenizer, parser = text.answer_detokenizer(), text.answers.parser(tools={"sum": {}}, new_id=lambda: "id")
    parts = [part for token_id in ids for part in parser.push(detokenizer.push([token_id]))] + parser.finish()
    calls = (MessageCall("id", "sum", "{}"), MessageCall("id", "sum", '{"a": 1}'))
    assert Message.of(parts) == Message("I look.", "Hm.", calls)
    # Without a parser they leave no text.
    assert "[" not in text.detokenizer().push(ids)


def test_reasoning_opened_by_a_control_token_of_the_prompt() -> None:
    text, question = model(), [{"role": "user", "content": "q"}]
    assert text.opens_reasoning(text.encode_chat(question, template_kwargs={"think": True}))
    assert not text.opens_reasoning(text.encode_chat(question))
