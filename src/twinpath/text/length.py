"""Text that is too long whatever its tokens are: refused before it is encoded, which costs seconds and gigabytes."""

from __future__ import annotations

from twinpath.errors import ContextOverflow

#: More than any token of the known vocabularies spells (runs of 128 blanks are the longest).
MAX_TOKEN_CHARS = 512


def check_can_fit(num_chars: int, window: int, param: str) -> None:
    """`window`: the model's, in tokens.

    Raises: ContextOverflow, saying how many tokens there are at least.
    """
    least = num_chars // MAX_TOKEN_CHARS
    if least > window:
        raise ContextOverflow.of(
            f"This model's maximum context length is {window} tokens. However, your prompt has at least {least} tokens "
            f"({num_chars} characters). Please shorten the prompt.",
            param=param,
            num_tokens=least,
            window_tokens=window,
        )
