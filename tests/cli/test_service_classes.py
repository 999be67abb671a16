"""Service classes as text."""

from __future__ import annotations

import pytest

from twinpath.cli.service_classes import parse_slo
from twinpath.config import SloClass, SloConfig
from twinpath.errors import UserError


def test_classes_and_keys() -> None:
    parsed = parse_slo(
        classes=("chat=300,25", " batch = 60000 , - , 0.5", "any=-,-"),
        class_of_key=("a=b=chat",),
        api_keys=("a=b", "other"),
    )
    assert parsed == SloConfig(
        (SloClass("chat", 300.0, 25.0), SloClass("batch", 60_000.0, None, 0.5), SloClass("any")), (("a=b", "chat"),)
    )


@pytest.mark.parametrize(
    ("classes", "keys", "words"),
    [
        (("chat",), (), "write NAME=TTFT_MS,TPOT_MS"),
        (("chat=300",), (), "write NAME=TTFT_MS,TPOT_MS"),
        (("chat=1,2,3,4",), (), "write NAME=TTFT_MS,TPOT_MS"),
        (("ch at=1,2",), (), "write NAME=TTFT_MS,TPOT_MS"),
        (("=1,2",), (), "write NAME=TTFT_MS,TPOT_MS"),
        (("chat=soon,2",), (), "'soon' is no number"),
        (("chat=0,2",), (), "must be above 0"),
        (("chat=nan,2",), (), "must be above 0"),
        (("chat=1,2,-",), (), "weight must be a number"),
        (("chat=1,2", "chat=3,4"), (), "chat is given twice"),
        (tuple(f"c{i}=1,2" for i in range(33)), (), "at most 32"),
        (("chat=1,2",), ("key=other",), "no class 'other'"),
        (("chat=1,2",), ("unknown=chat",), "none of --api-key"),
        (("chat=1,2",), ("chat",), "write KEY=NAME"),
    ],
)
def test_mistakes_are_one_line(classes: tuple[str, ...], keys: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        parse_slo(classes=classes, class_of_key=keys, api_keys=("key",))
    assert "\n" not in str(refused.value)


def test_a_wrong_key_is_not_shown() -> None:
    with pytest.raises(UserError) as refused:
        parse_slo(classes=("chat=1,2",), class_of_key=("secret=chat",), api_keys=())
    assert "secret" not in str(refused.value)
