"""Columns for terminals: widths, which side they end on, and nothing behind the last word."""

from einc.report.layout import columns


def test_cells_stand_below_one_another_and_numbers_end_flush() -> None:
    rows = [("name", "a", "b", "moved", "why"), ("x", "1,000", "2", "-", ""), ("long name", "3", "12", "4", "then")]
    assert columns(rows) == [
        "name           a   b  moved  why",
        "x          1,000   2      -",
        "long name      3  12      4  then",
    ]
    assert columns([("a", "b"), ("long", "word")], right=()) == ["a     b", "long  word"]
    assert columns([("", "b"), ("long", "word")], right=(0, 1)) == ["         b", "long  word"]
