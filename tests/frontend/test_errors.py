"""Every bad model under `bad/` has one golden error text, short enough for a screen (`pytest --update-golden`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from einc.errors import ModelError
from einc.frontend import build

BAD = sorted((Path(__file__).parent / "bad").glob("*.ein"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_errors_read_as_agreed(path: Path, update_golden: bool) -> None:
    with pytest.raises(ModelError) as caught:
        build(path.read_text(encoding="utf-8"), path.name)
    text = caught.value.render() + "\n"
    golden = path.with_suffix(".txt")
    if update_golden:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 75, "more than a screen"


def messages(text: str, **options: object) -> list[str]:
    """All findings of a model as `line: message`."""
    with pytest.raises(ModelError) as caught:
        build(text, "m.ein", **options)  # type: ignore[arg-type]
    return [f"{d.span.line if d.span else 0}: {d.message}" for d in caught.value.diagnostics]
