"""What a user wants of a model, and what an import comes to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `einc import hf`; None and empty values leave a choice to the importer.

    `tokens` of each of `batch` sequences come with a run. A decoder's `decode` step reads key/value caches of `cache`
    places per sequence; `logits` are those of the `last` token of each sequence, or of `all`. An encoder's `pool` is
    mean or cls, `normalize` scales the pooled vectors to length 1, and `segments` makes token types an input.
    """

    batch: int = 1
    tokens: int | None = None
    decode: bool = False
    cache: int | None = None
    logits: str | None = None
    pool: str | None = None
    normalize: bool = False
    segments: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """A model's text, and what its user may want to know about it: defaults that were taken, what was left out."""

    architecture: str
    text: str
    notes: tuple[str, ...]
