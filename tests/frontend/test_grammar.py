"""The grammar itself: no conflicts that Lark would resolve silently, and the words that can still be names."""

from __future__ import annotations

import io
import json
import logging
import shutil
import time
from pathlib import Path

import lark
import pytest

from einc.data import find_folder
from einc.frontend import ast, parser
from einc.frontend.parser import parse
from tests.support.parser_tables import write_tables


def test_the_grammar_has_no_conflicts() -> None:
    grammar = (find_folder("grammars") / "ein.lark").read_text(encoding="utf-8")
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    lark.logger.addHandler(handler)
    level = lark.logger.level
    lark.logger.setLevel(logging.DEBUG)
    try:
        lark.Lark(grammar, parser="lalr", lexer="basic", debug=True, maybe_placeholders=False)
    finally:
        lark.logger.setLevel(level)
        lark.logger.removeHandler(handler)
    assert log.getvalue()  # the log is heard at all
    assert "conflict" not in log.getvalue().lower()


def test_the_tables_are_those_of_the_grammar(update_golden: bool) -> None:
    grammar, file = (find_folder("grammars") / name for name in ("ein.lark", "ein.json"))
    text = write_tables(grammar.read_text(encoding="utf-8"))
    if update_golden:
        file.write_text(text, encoding="utf-8")
    version, written = (json.loads(tables_text)["stamp"] for tables_text in (text, file.read_text(encoding="utf-8")))
    if version.split()[0] == written.split()[0]:  # of Lark
        assert text == file.read_text(encoding="utf-8"), "make golden writes it"


def test_tables_of_another_grammar_are_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(find_folder("grammars"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "ein.json").write_text('{"stamp": "another one", "data": {}, "memo": {}}')
    monkeypatch.setattr(parser, "find_folder", lambda name: tmp_path)
    parser.load_parser.cache_clear()
    try:
        assert parse("x = y", "w.ein").statements == (ast.AssignStmt((ast.Name("x"),), ast.Name("y")),)
    finally:
        parser.load_parser.cache_clear()


@pytest.mark.parametrize("word", ["inputs", "dims", "weight_2", "asx", "from_", "true1", "modelled", "_", "f32x"])
def test_words_that_begin_like_keywords_are_names(word: str) -> None:
    assert parse(f"{word} = {word}", "w.ein").statements == (ast.AssignStmt((ast.Name(word),), ast.Name(word)),)


def test_statements_end_with_lines_or_semicolons_but_not_in_brackets() -> None:
    lines = "x = f(a,\n  # a comment\n  k=1,\n)\ny = [\n1,\n2]\nrepeat 2 {\n\n a = b;; c = d }\n"
    flat = "x = f(a, k=1); y = [1, 2]; repeat 2 { a = b; c = d }"
    assert parse(lines, "l.ein") == parse(flat, "f.ein")


def test_parsing_takes_time_in_proportion_to_the_text() -> None:
    def seconds(count: int) -> float:
        text = "h = relu(matmul(x, w) + b) * 2.0\n" * count
        times = []
        for _ in range(3):  # the first builds the tables
            start = time.process_time()
            assert len(parse(text, "t.ein").statements) == count
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(800) < 10 * seconds(200)
