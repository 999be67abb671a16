"""Text that is too long is refused before it is encoded as a whole, which would cost seconds and gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twinpath.errors import ContextOverflow

#: More than any token of the known vocabularies spells (runs of 128 blanks are the longest).
MAX_TOKEN_CHARS = 512
#: Characters per token above which text is worth a count: prose and code have 2 to 6.
_DENSE_CHARS = 8
_PIECE_CHARS = 32 * 1024
#: A cut may split a token in two or more, and merges across it are lost: far fewer than so many a piece.
_CUT_TOKENS = 64


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


def check_count(texts: Iterable[str], encode: Callable[[str], Sequence[int]], window: int, param: str) -> None:
    """Count the tokens of long text piece by piece, and stop at the window: that costs a window's worth of encoding.

    Counts a little less than there are, so that nothing is refused that fits; text that is not long is not counted.

    Raises: ContextOverflow.
    """
    texts = list(texts)
    num_chars = sum(map(len, texts))
    if num_chars <= _DENSE_CHARS * window:
        return
    check_can_fit(num_chars, window, param)
    least = 0
    for text in texts:
        for begin in range(0, len(text), _PIECE_CHARS):
            least += max(len(encode(text[begin : begin + _PIECE_CHARS])) - _CUT_TOKENS, 0)
            if least > window:
                raise ContextOverflow.of(
                    f"This model's maximum context length is {window} tokens. However, your prompt has more than "
                    f"{least} tokens ({num_chars} characters). Please shorten the prompt.",
                    param=param,
                    num_tokens=least,
                    window_tokens=window,
                )
