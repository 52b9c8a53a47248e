"""What a GGUF file says about text, as the files beside published weights would say it: tokenizer.json and others.

Tokenizers are built from the file's vocabulary where it says all that one needs to know: pairs of bytes by the rules of
a family that is known here (`tokenizer.ggml.pre`), or SentencePiece's pairs, whose order follows from their scores. In
both cases they are as transformers makes them of such files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einc_runtime.errors import ArrayFault, UsageFault
from einc_runtime.execution.data.gguf_file import GgufFile, MetadataValue

MAX_TOKEN_CHARACTERS = 1024
"""Of one token; the longest in published vocabularies have some hundred."""
MAX_VOCABULARY_CHARACTERS = 1 << 25
"""Of all tokens; each is tried as two parts, at each of its characters."""

TOKENIZER = "tokenizer.json"
_NORMAL, _CONTROL_TOKEN, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_SPECIAL = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
            "pad_token": "padding_token_id"}  # fmt: skip
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SPACE = "\u2581"

_OTHER_PATTERN = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True, slots=True)
class _ByteRules:
    """How texts are cut before pairs of bytes are joined: by a pattern, or as GPT-2 does, with single digits or not."""

    pattern: str = ""
    digits: bool = False
    composed: bool = False  # texts are in Unicode's form NFC first
    joins_words: bool = False  # what is a token as a joins_words is one


_BYTE_RULES = {
    "gpt-2": _ByteRules(),
    "llama-bpe": _ByteRules(_WORD_PATTERN + r"\p{N}{1,3}" + _OTHER_PATTERN, joins_words=True),
    "qwen2": _ByteRules(_WORD_PATTERN + r"\p{N}" + _OTHER_PATTERN, composed=True),
    "smollm": _ByteRules(digits=True),
    "starcoder": _ByteRules(digits=True),
    "tekken": _ByteRules(
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
        + _OTHER_PATTERN.replace(r"[\r\n]*|", r"[\r\n/]*|"),
        joins_words=True,
    ),
}
"""By `tokenizer.ggml.pre`, as the published tokenizers of these families have them."""


TEXT_FILES = ("generation_config.json", "tokenizer_config.json", TOKENIZER)
"""The files that one stands for."""


class GgufTexts:
    """The files about text that a GGUF file stands for."""

    def __init__(self, path: str) -> None:
        file = GgufFile(path)
        self._path, self._metadata = path, file.metadata
        self._architecture = str(self._metadata.get("general.architecture"))

    def read(self, name: str) -> bytes:
        """The bytes of a file, one of `TEXT_FILES`. Raises ArrayFault for metadata that contradicts itself,
        and UsageFault for a vocabulary that no tokenizer can be made of."""
        makers = {
            "generation_config.json": self._describe_generation,
            "tokenizer_config.json": self._describe_special_tokens,
            TOKENIZER: self._describe_tokenizer,
        }
        return json.dumps(makers[name]()).encode()

    def _get(self, name: str) -> MetadataValue | None:
        return self._metadata.get(f"tokenizer.ggml.{name}")

    def _describe_generation(self) -> dict[str, Any]:
        ends = [end for end in map(self._get, _ENDS) if isinstance(end, int) and not isinstance(end, bool)]
        return {"eos_token_id": list(dict.fromkeys(ends))} if ends else {}

    def _describe_special_tokens(self) -> dict[str, Any]:
        tokens = self._read_tokens()
        named = {name: self._find_token(key, tokens) for name, key in _SPECIAL.items()}
        template = self._metadata.get("tokenizer.chat_template")
        return {**named, **({"chat_template": template} if isinstance(template, str) else {})}

    def _find_token(self, key: str, tokens: Sequence[str]) -> str | None:
        number = self._get(key)
        return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None

    def _read_tokens(self) -> list[str]:
        tokens = self._get("tokens")
        return tokens if isinstance(tokens, list) else []

    def _describe_tokenizer(self) -> dict[str, Any]:
        kind, tokens = self._get("model"), self._read_tokens()
        if not tokens or kind not in ("gpt2", "llama"):
            raise self._refuse(f"its tokenizer is of the kind {str(kind)[:40]!r}")
        if len(set(tokens)) != len(tokens):
            raise self._refuse("its vocabulary has a token twice")
        if max(map(len, tokens)) > MAX_TOKEN_CHARACTERS or sum(map(len, tokens)) > MAX_VOCABULARY_CHARACTERS:
            raise self._refuse("its vocabulary has longer tokens than any published one")
        kinds = self._read_numbers("token_type", len(tokens), _NORMAL)
        rules = self._describe_bytes(tokens, kinds) if kind == "gpt2" else self._describe_pieces(tokens)
        added = [
            {"id": number, "content": token, "special": kinds[number] == _CONTROL_TOKEN, "normalized": False,
             "single_word": False, "lstrip": False, "rstrip": False}
            for number, token in enumerate(tokens)
            if kinds[number] in (_CONTROL_TOKEN, _USER_DEFINED) and token
        ]  # fmt: skip
        around = self._describe_ends(tokens, kind == "llama")
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **rules, **around}

    def _read_numbers(self, name: str, count: int, default: int) -> Sequence[Any]:
        numbers = self._get(name)
        if numbers is None:
            return [default] * count
        if isinstance(numbers, str | int | float) or len(numbers) != count or isinstance(numbers[0], str):
            raise ArrayFault(f"tokenizer.ggml.{name}: expected {count:,} numbers", where=self._path)
        values: Sequence[Any] = numbers.tolist() if not isinstance(numbers, list) else numbers
        return values

    def _describe_bytes(self, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
        """Pairs of bytes, each of which is written as a character."""
        name, merges = self._get("pre"), self._get("merges")
        if name not in _BYTE_RULES or not isinstance(merges, list):
            raise self._refuse(f"its texts are cut as {str(name)[:40]!r} does, which einc does not know")
        rules = _BYTE_RULES[str(name)]
        plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not rules.pattern}
        before: list[dict[str, Any]] = [plain]
        if rules.pattern:
            pattern = {"Regex": rules.pattern}
            before.insert(0, {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
        if rules.digits:
            before.insert(0, {"type": "Digits", "individual_digits": True})
        vocabulary = {token: n for n, token in enumerate(tokens) if kinds[n] != _UNUSED}
        return {
            "normalizer": {"type": "NFC"} if rules.composed else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": before},
            "decoder": {**plain, "use_regex": True, "add_prefix_space": True},
            "model": _describe_pairs(
                vocabulary, [merge.split(" ", 1) for merge in merges], ignore_merges=rules.joins_words
            ),
        }

    def _describe_pieces(self, tokens: Sequence[str]) -> dict[str, Any]:
        """SentencePiece's pairs: what is joined first has the highest score, in Gemma's files the lowest number."""
        is_gemma = self._architecture.startswith("gemma")
        if is_gemma:  # tokens of several spaces are stored as such
            tokens = [_SPACE * len(token) if " " in token and not token.strip() else token for token in tokens]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        if is_gemma:
            scores: Sequence[float] = [-number for number in range(len(tokens))]
        else:
            scores = self._read_numbers("scores", len(tokens), 0)
        merges = self._get("merges")
        pairs = (
            [merge.split(" ", 1) for merge in merges]
            if isinstance(merges, list) and all(isinstance(merge, str) for merge in merges)
            else derive_merges(vocabulary, dict(zip(tokens, scores, strict=True)))
        )
        unknown = self._find_token("unknown_token_id", tokens)
        model = _describe_pairs(vocabulary, pairs, byte_fallback=True, fuse_unk=True, unk_token=unknown)
        fused = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"},
                 {"type": "Fuse"}]  # fmt: skip
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        prefixed = self._get("add_space_prefix") is not False and not is_gemma
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefixed
        normalizer: dict[str, Any] | None = spaces
        before: dict[str, Any] | None = None
        if is_gemma:
            before = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        elif self._architecture == "phi3":
            normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, spaces]}
        else:
            scheme = "first" if prefixed else "never"
            before = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": False}
            normalizer = None
        decoder = {"type": "Sequence", "decoders": fused + strip}
        return {"normalizer": normalizer, "pre_tokenizer": before, "decoder": decoder, "model": model}

    def _describe_ends(self, tokens: Sequence[str], starts: bool) -> dict[str, Any]:
        """Which tokens stand before and after a text: as the file says, or as llama.cpp does where it does not."""
        starts = starts or self._get("pre") == "llama-bpe"
        chosen = {"add_bos_token": ("bos_token_id", starts), "add_eos_token": ("eos_token_id", False)}
        names: list[str | None] = []
        for flag, (key, default) in chosen.items():
            stated = self._get(flag)
            is_added = default if stated is None else stated is True
            names.append(self._find_token(key, tokens) if is_added else None)
        first, last = ([{"SpecialToken": {"id": name, "type_id": 0}}] if name else [] for name in names)
        special = {
            name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in names if name is not None
        }
        single = [*first, {"Sequence": {"id": "A", "type_id": 0}}, *last]
        pair = [*single, *first, {"Sequence": {"id": "B", "type_id": 0}}, *last]
        processor = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
        return {"post_processor": processor if special else None}

    def _refuse(self, why: str) -> UsageFault:
        hint = "name a folder that has the tokenizer.json of this model with --tokenizer"
        return UsageFault(f"no tokenizer can be made of this file: {why}", where=self._path, hint=hint)


def derive_merges(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[list[str]]:
    """All pairs of tokens that are a token together, in the order in which they are joined: by the score of what they
    become, then as transformers orders them."""
    pairs = []
    for token, score in scores.items():
        pieces = [
            (token[:cut], token[cut:])
            for cut in range(1, len(token))
            if token[:cut] in vocabulary and token[cut:] in vocabulary
        ]
        pieces.sort(key=lambda piece: (vocabulary[piece[0]], vocabulary[piece[1]]))
        pairs += [(score, len(first), len(second), first, second) for first, second in pieces]
    pairs.sort(key=lambda pair: pair[:3], reverse=True)
    return [[first, second] for _, _, _, first, second in pairs]


def _describe_pairs(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], **options: Any) -> dict[str, Any]:
    plain = {"unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {
        "type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        **plain, **options, "vocab": vocabulary, "merges": merges,
    }  # fmt: skip
