"""The grammars and example models that come with einc: in the package once installed, beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def find_folder(name: str) -> Path:
    """The folder `grammars` or `models`."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
