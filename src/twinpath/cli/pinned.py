"""The files of `--pin-template`: what the server pins at its start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from twinpath.errors import RequestError, UserError

if TYPE_CHECKING:
    from twinpath.api.ports import TextModel
    from twinpath.ipc.messages import PinnedPrompt


def read_pinned(paths: tuple[str, ...], text: TextModel, *, has_keys: bool) -> list[PinnedPrompt]:
    """Prompts of JSON files as POST /v1/twinpath/templates takes them; the name may be missing (the file's then).

    Raises: UserError naming the file.
    """
    return [_read(path, text, has_keys=has_keys) for path in paths]


def _read(path: str, text: TextModel, *, has_keys: bool) -> PinnedPrompt:
    from twinpath.api.body import decode_body
    from twinpath.api.templates import decoder, pinned_prompt

    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"--pin-template {path}: {error.strerror}") from error
    try:
        fields = decode_body(content, decoder)
        prompt = pinned_prompt(fields, text, fields.name or Path(path).stem, "")
    except RequestError as error:
        raise UserError(f"--pin-template {path}: {error.message}") from error
    if has_keys and not fields.shared:
        raise UserError(f'--pin-template {path}: with API keys a template is nobody\'s; set "shared": true in it')
    return prompt
