"""Files -> `TextModel`."""

from __future__ import annotations

from dataclasses import replace

from twinpath.model.files import ModelFiles
from twinpath.model.weights import read_spec
from twinpath.text.answer import answer_format
from twinpath.text.byte_model import byte_model
from twinpath.text.gguf_text import text_from_gguf
from twinpath.text.hf_text import text_from_directory
from twinpath.text.text_model import TextModel


def load_text(
    files: ModelFiles,
    override_template: str | None = None,
    *,
    tool_format: str = "auto",
    reasoning_format: str = "auto",
) -> TextModel:
    """Tokeniser, template and defaults of a model. `override_template` is Jinja text that replaces the model's own.

    Raises: ModelLoadError naming the file and what is wrong with it; UserError for a format that is none.
    """
    model = _load(files, override_template)
    source = None if model.template is None else model.template.source
    return replace(model, answers=answer_format(source, tools=tool_format, reasoning=reasoning_format))


def _load(files: ModelFiles, override_template: str | None) -> TextModel:
    if files.format == "scripted":
        return byte_model(chat_template=override_template)
    if files.format == "gguf":
        return text_from_gguf(files, override_template)
    return text_from_directory(files, override_template, read_spec(files))
