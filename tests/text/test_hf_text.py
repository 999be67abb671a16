"""The text side of directories: Transformers reading the same files is the oracle."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from twinpath.errors import ModelLoadError
from twinpath.model.files import files_at
from twinpath.text.load import load_text
from twinpath.text.text_model import TextModel

CORPUS = ["the quick brown fox", "jumps over the lazy dog", "naïve café 12 34", "def f(x):\n    return x\n"] * 20
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 600,
}
SPECIAL = ["<unk>", "<s>", "</s>", "<|turn|>"]


def byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def sentencepiece_like(scheme: str) -> tokenizers.Tokenizer:
    """As Transformers converts a Llama's: `legacy` prepends in the normaliser, the others in the pre-tokenizer."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=370,
        byte_fallback=True,
        normalization_rule_name="identity",
        control_symbols=["<|turn|>"],
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [pieces.IdToPiece(i) for i in range(pieces.GetPieceSize())]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [
        (token[:cut], token[cut:])
        for token in sorted(tokens, key=lambda t: -pieces.GetScore(vocabulary[t]))
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary and token not in SPECIAL
    ]
    backend = tokenizers.Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme == "legacy":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if scheme != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(SPECIAL)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


BACKENDS = {
    "byte-level": byte_level,
    "legacy": lambda: sentencepiece_like("legacy"),
    "first": lambda: sentencepiece_like("first"),
    "never": lambda: sentencepiece_like("never"),
}


def directory(path: Path, backend: tokenizers.Tokenizer, **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    contents = {"config": CONFIG, "tokenizer_config": {"bos_token": "<s>", "eos_token": {"content": "</s>"}}, **files}
    for name, content in contents.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module", params=BACKENDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TextModel, Any]:
    path = directory(tmp_path_factory.mktemp("hf") / "m", BACKENDS[request.param]())
    return load_text(files_at(path)), PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))


TEXTS = st.lists(
    st.sampled_from(["the", " fox", "  ", "\n", "é", "世", "😀", "12", "</s>", "<|turn|>", "<s>", "<", "q", "▁"]),
    max_size=10,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_prompts_as_transformers(both: tuple[TextModel, Any], text: str) -> None:
    ours, right = both
    expected = right(text)["input_ids"]
    if text.startswith("<s>"):
        # Transformers doubles the BOS that the caller wrote; we do not.
        expected = expected[1:]
    assert ours.tokenizer.encode_prompt(text) == expected


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_plain_text_as_transformers_split_special_tokens(both: tuple[TextModel, Any], text: str) -> None:
    ours, right = both
    expected = right(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if right.unk_token_id not in expected and not set(expected) & ours.tokenizer.special_ids:
        assert ours.tokenizer.encode(text) == expected


@settings(max_examples=150, deadline=None)
@given(text=TEXTS.filter(lambda text: "▁" not in text))
def test_decodes_as_transformers(both: tuple[TextModel, Any], text: str) -> None:
    ours, right = both
    ids = ours.tokenizer.encode(text)
    expected = right.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert ours.tokenizer.decode(ids) == expected
    # The "first" scheme puts no space where one is, and decoding takes one away: its loss, not ours.
    assert text in (expected, f" {expected}")


def text_model(tmp_path: Path, override: str | None = None, **files: Any) -> TextModel:
    return load_text(files_at(directory(tmp_path / "m", byte_level(), **files)), override)


CHAT = "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.content }}{{ eos_token }}{% endfor %}"


def test_template_and_its_tokens(tmp_path: Path) -> None:
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHAT}
    model = text_model(tmp_path, tokenizer_config=settings)
    ids = model.encode_chat([{"role": "user", "content": "the </s>"}])
    assert model.tokenizer.decode(ids, skip_special=False) == "<s><|turn|>the </s></s>"
    assert [i for i in ids if i in model.tokenizer.special_ids] == [1, 3, 2]


def test_the_jinja_file_wins_and_an_override_wins_over_it(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "chat_template.jinja").write_text("from the file")
    settings = {"chat_template": CHAT}
    messages = [{"role": "user", "content": "x"}]
    assert text_model(tmp_path, tokenizer_config=settings).render_chat(messages) == "from the file"
    assert text_model(tmp_path, "from the flag", tokenizer_config=settings).render_chat(messages) == "from the flag"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    model = text_model(tmp_path, tokenizer_config={"chat_template": named})
    assert model.render_chat([{"role": "user", "content": "x"}]) == "default"


def test_stop_ids_from_every_place(tmp_path: Path) -> None:
    model = text_model(tmp_path, generation_config={"eos_token_id": [3, 2]}, config=CONFIG | {"eos_token_id": 1})
    assert model.stop_token_ids == (3, 2, 1)
    assert text_model(tmp_path, generation_config={}, config=CONFIG).stop_token_ids == (2,)
    assert text_model(tmp_path, generation_config={"eos_token_id": [10**6, "x"]}).stop_token_ids == (2,)


def test_sampling_defaults(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": "high", "max_length": 4096}
    assert text_model(tmp_path, generation_config=generation).default_sampling == {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
    }
    assert text_model(tmp_path, generation_config={"do_sample": False}).default_sampling == {"temperature": 0.0}


def test_bos_can_be_forbidden(tmp_path: Path) -> None:
    settings = {"bos_token": "<s>", "add_bos_token": False}
    assert text_model(tmp_path, tokenizer_config=settings).tokenizer.encode_prompt("the")[0] != 1
    assert text_model(tmp_path).tokenizer.encode_prompt("the")[0] == 1


def test_the_model_may_have_more_rows_than_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = text_model(tmp_path).tokenizer
    assert tokenizer.vocab_size == 600
    assert tokenizer.decode([599]) == ""


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, "tokenizer.model alone is not supported"),
        ("tokenizer.json", "{", "tokenizer.json: cannot be read"),
        ("tokenizer_config.json", "[", "tokenizer_config.json: is not valid JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("tokenizer_config.json", '{"chat_template": 7}', "'chat_template' must be text"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "chat template, line 1"),
        ("generation_config.json", "nonsense", "generation_config.json: is not valid JSON"),
        ("config.json", json.dumps(CONFIG | {"vocab_size": 100}), "tokens, the model 100"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    path = directory(tmp_path / "m", byte_level()) / name
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content)
    with pytest.raises(ModelLoadError) as caught:
        load_text(files_at(tmp_path / "m"))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_wordpiece_is_refused(tmp_path: Path) -> None:
    backend = byte_level()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelLoadError, match=r"decoder .*WordPiece.* is not supported"):
        load_text(files_at(directory(tmp_path / "m", backend)))
