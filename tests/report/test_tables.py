"""Columns for terminals: widths, which side they end on, and nothing behind the last word."""

from einc.report.tables import align_columns


def test_cells_stand_below_one_another_and_numbers_end_flush() -> None:
    rows = [("name", "a", "b", "moved", "why"), ("x", "1,000", "2", "-", ""), ("long name", "3", "12", "4", "then")]
    assert align_columns(rows) == [
        "name           a   b  moved  why",
        "x          1,000   2      -",
        "long name      3  12      4  then",
    ]
    assert align_columns([("a", "b"), ("long", "word")], right=()) == ["a     b", "long  word"]
    assert align_columns([("", "b"), ("long", "word")], right=(0, 1)) == ["         b", "long  word"]
