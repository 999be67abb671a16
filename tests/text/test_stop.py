"""Stop strings, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpath.text.stop import StopMatcher, StopSet


def run(stops: list[str], deltas: list[str]) -> tuple[list[str], str | None]:
    """What went out per delta (what is held back at the end included), and the stop string that matched."""
    matcher = StopMatcher(stops)
    out = [matcher.push(delta) for delta in deltas]
    if matcher.matched is None:
        out.append(matcher.finish())
    return out, matcher.matched


def test_a_stop_string_over_four_deltas() -> None:
    out, matched = run(["LMNOPQ"], ["IJK", "LM", "N", "OP", "Q R"])
    assert (out, matched) == (["IJK", "", "", "", ""], "LMNOPQ")


def test_a_beginning_that_goes_on_otherwise_is_released() -> None:
    assert run(["LMNOPQ"], ["IJKLM", "NX", "Y"]) == (["IJK", "LMNX", "Y", ""], None)


def test_a_beginning_at_the_end_of_the_text_is_released() -> None:
    assert run(["END"], ["the EN"]) == (["the ", "EN"], None)


def test_only_the_longest_possible_beginning_is_held_back() -> None:
    assert run(["aab"], ["aaaa"])[0] == ["aa", "aa"]


def test_matchers_of_one_set_do_not_meet() -> None:
    stops = StopSet(["ab"])
    first, second = StopMatcher(stops), StopMatcher(stops)
    assert (first.push("xa"), second.push("b")) == ("x", "b")
    assert (first.push("b"), first.matched, second.matched) == ("", "ab", None)


def test_the_match_that_ends_first_wins() -> None:
    assert run(["abcd", "bc"], ["xabcd"]) == (["xa"], "bc")


def test_of_two_that_end_together_the_longer_wins() -> None:
    assert run(["c", "abc"], ["xabc"]) == (["x"], "abc")


def test_nothing_goes_out_after_a_match() -> None:
    assert run(["\n"], ["a\nb", "c"]) == (["a", ""], "\n")


def test_no_stop_strings_hold_nothing_back() -> None:
    assert run([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_many_stop_strings() -> None:
    stops = [f"<{number}>" for number in range(200)]
    assert run(stops, ["a <19", "9> b"]) == (["a ", ""], "<199>")


TEXT = st.text("ab\n", max_size=20)


def right(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: the earliest end, then the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


@given(stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4), deltas=st.lists(TEXT, max_size=6))
def test_any_cut_gives_the_definition(stops: list[str], deltas: list[str]) -> None:
    out, matched = run(stops, deltas)
    assert ("".join(out), matched) == right(stops, "".join(deltas))


@given(stop=st.text("ab", min_size=1, max_size=5), text=st.text("ab", max_size=30))
def test_no_more_is_held_back_than_could_become_a_stop_string(stop: str, text: str) -> None:
    matcher = StopMatcher([stop])
    out = "".join(matcher.push(character) for character in text)
    if matcher.matched is None:
        held = text[len(out) :]
        assert stop.startswith(held)
        assert not any(text.endswith(stop[:n]) for n in range(len(held) + 1, len(stop)))


@pytest.mark.parametrize("length", [1_000, 10_000])
def test_hostile_text_costs_one_look_per_character_and_a_bounded_number_of_steps(length: int) -> None:
    matcher = StopMatcher(["a" * 500 + "b"])
    step = matcher._machine.step
    calls = 0

    def counted(state: int, character: str) -> int:
        nonlocal calls
        calls += 1
        return step(state, character)

    matcher._machine.step = counted  # type: ignore[method-assign]
    for character in "a" * length:
        matcher.push(character)
    assert calls == length
    assert matcher.finish() == "a" * 500
