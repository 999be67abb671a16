"""What cannot fit is refused before it is encoded as a whole."""

from __future__ import annotations

import pytest

from twinpath.errors import ContextOverflow
from twinpath.text.length import check_count


class Counter:
    """A tokenizer of four characters a token that remembers what it was given."""

    def __init__(self) -> None:
        self.num_chars = 0

    def __call__(self, text: str) -> list[int]:
        self.num_chars += len(text)
        return [0] * -(-len(text) // 4)


def test_long_text_is_encoded_up_to_the_window_only() -> None:
    encode = Counter()
    with pytest.raises(ContextOverflow) as refused:
        check_count(["a" * 30_000_000], encode, 100_000, "messages")
    assert refused.value.param == "messages" and 100_000 < refused.value.num_tokens < 110_000
    assert encode.num_chars < 500_000


def test_text_of_the_usual_density_is_not_counted() -> None:
    encode = Counter()
    check_count(["a" * 4000, "b" * 4000], encode, 1000, "messages")
    assert encode.num_chars == 0


def test_what_fits_is_never_refused() -> None:
    """A token for each 64 characters: long, and within the window."""
    check_count([" " * 640_000], lambda text: [0] * (len(text) // 64), 10_001, "messages")


def test_several_texts_count_together() -> None:
    with pytest.raises(ContextOverflow):
        check_count(["a" * 200_000] * 5, Counter(), 100_000, "messages")


def test_what_cannot_fit_at_any_density_is_not_encoded_at_all() -> None:
    encode = Counter()
    with pytest.raises(ContextOverflow):
        check_count(["a" * 1_000_000], encode, 1000, "prompt")
    assert encode.num_chars == 0
