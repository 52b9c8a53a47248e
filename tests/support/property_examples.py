"""How many examples a property test takes: some in `make test`, all in `make test-slow` and `make test-new`."""

from __future__ import annotations

from hypothesis import settings

ALL = 100
"""What the profiles that take all examples have as their number; that of a test is scaled as the profile's is."""


def examples(most: int) -> settings:
    """At most so many examples, or the part of them that the profile in use takes."""
    return settings(max_examples=max(1, most * settings.default.max_examples // ALL))
