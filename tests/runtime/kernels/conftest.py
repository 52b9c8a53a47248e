"""Arrays cut into many pieces: modules that use the fixture `piece` run with them, too."""

from __future__ import annotations

import pytest

from einc_runtime.kernels.numpy import pieces


@pytest.fixture(params=[1 << 15, 7], ids=["large pieces", "tiny pieces"])
def piece(request, monkeypatch):
    """Arrays in one piece where they are small, and cut into many."""
    original = pieces.Walk.over
    monkeypatch.setattr(
        pieces.Walk,
        "over",
        staticmethod(lambda views, piece=None: original(views, min(piece or 1 << 15, request.param))),
    )
