"""Text for messages: what it promises of names that nobody has checked, and strict JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.strict_json import parse_json
from einc_runtime.text import (
    did_you_mean,
    escape_text,
    format_count,
    format_memory,
    quote_names,
    replace_unprintable,
    shorten,
    suggest_name,
)


@given(st.text(), st.integers(4, 300))
def test_no_text_hands_the_terminal_commands(text: str, limit: int) -> None:
    assert escape_text(text, limit).isprintable()
    assert len(shorten(text, limit)) <= limit
    assert replace_unprintable(text).isprintable()
    assert len(replace_unprintable(text)) == len(text)
    assert quote_names([text] * 20).isprintable()


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("hiden", ["hidden", "output"], "did you mean 'hidden'?"),
        ("GELU", ["gelu", "relu"], "did you mean 'gelu'?"),
        ("layernrom", ["LayerNorm", "rmsnorm"], "did you mean 'LayerNorm'?"),
        ("loss", ["close", "mask"], None),  # two of three letters are equal, and they are other words
        ("zzz", ["hidden", "output"], None),
        ("x", [], None),
        ("", ["a"], None),
        ("weights" * 1000, ["weight" * 1000], None),
    ],
)
def test_the_name_that_is_most_alike_is_suggested(name: str, known: list[str], hint: str | None) -> None:
    assert did_you_mean(name, known) == hint


@given(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=8))
def test_names_that_are_left_out_for_their_length_would_not_be_suggested(name: str, known: list[str]) -> None:
    import difflib

    best = difflib.get_close_matches(name.lower(), [word.lower() for word in known], 1, 0.7)
    hints = [f"did you mean '{escape_text(word)}'?" for word in known if best and word.lower() == best[0]]
    assert did_you_mean(name, known) in (hints or [None])


def test_amounts_and_lists() -> None:
    assert (format_count(1, "site"), format_count(1200, "site"), format_count(2, "index", "indices")) == (
        "1 site", "1,200 sites", "2 indices"
    )  # fmt: skip
    assert (format_memory(10_239), format_memory(10_240), format_memory(3 << 30)) == ("10,239 B", "10 KiB", "3 GiB")
    assert suggest_name("q", ["a", "b", "c"]) == "there are 'a', 'b', 'c'"
    assert quote_names(list("abc"), 2) == "'a', 'b' and 1 more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'a': 1}", r"not JSON: .*\(line 1, column 2\)"),
        ('{"a": {"b": 1, "b": 1}}', "the name 'b' is given twice"),
        ("[NaN]", "NaN is not a number of JSON"),
        ("[-Infinity]", "-Infinity is not a number of JSON"),
        ("1e999", "the number 1e999 is too large"),
        ("9" * 5000, "a number has more than 4300 digits"),
        ("[" * 200_000, "nested too deeply"),
        (b'"\xff"', r"not UTF-8 text \(byte 1\)"),
        (b"", "not JSON"),
    ],
)
def test_json_that_two_readers_might_take_differently_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(), lambda value: st.lists(value) | st.dictionaries(st.text(), value)))  # fmt: skip
def test_json_that_is_well_formed_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value
