"""The bytes of a plan bundle: header, checksum, canonical payload (`runtime/README.md` has the layout to the byte).

A plan file is untrusted. Its size is known before it is read, and its checksum is compared before it is decoded. Its
types are checked while it is decoded, and `validation` checks the rest before a caller gets the bundle. Every plan has
exactly one encoding: bytes that can be decoded but would be written differently (duplicate keys, wide integers, another
order of keys) are refused.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import weakref
from typing import IO, Any, cast

import msgspec

from einc_runtime.errors import PlanFault
from einc_runtime.plan.repetition import unfold
from einc_runtime.plan.schema import SCHEMA_VERSION, Bundle
from einc_runtime.plan.validation import require_short_texts, validate
from einc_runtime.text import escape_text

MAGIC = b"\x89EINC\r\n\x1a"
"""It is not ASCII text, and it shows whether a transfer has changed line ends."""

HEADER = struct.Struct(">8sIQ32s")
"""Magic, schema version, payload length, SHA-256 of the payload; big-endian, as MessagePack is."""

MAX_PAYLOAD_BYTES = 256 << 20
"""Largest payload that is written or read: about 1.5 million tasks. Decoding takes up to 30 times its memory."""

_CHUNK = 1 << 20  # bytes that are read at a time
_decoder = msgspec.msgpack.Decoder(Bundle)
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoded: weakref.WeakValueDictionary[int, Bundle] = weakref.WeakValueDictionary()
"""What has been decoded, by its address."""


def encode(bundle: Bundle) -> bytes:
    """The bytes of a plan file; equal bundles give equal bytes.

    msgpack writes what msgspec reads, so every plan has passed two implementations of the format. Raises PlanFault
    where the plan is too large to be read again.
    """
    import msgpack  # type: ignore[import-untyped]  # here, because reading a plan does not need it

    require_short_texts(bundle)
    return seal(cast(bytes, msgpack.packb(to_builtins(bundle))))


def to_builtins(bundle: Bundle) -> Any:
    """A bundle as maps, sequences, texts, numbers and bytes, in the order in which they are written."""
    return msgspec.to_builtins(bundle, order="deterministic", builtin_types=(bytes,))


def seal(payload: bytes) -> bytes:
    """Puts the header in front of a payload. Raises PlanFault if it is larger than readers accept."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise PlanFault(f"the plan takes {len(payload)} bytes; no plan may take more than {MAX_PAYLOAD_BYTES}")
    return HEADER.pack(MAGIC, SCHEMA_VERSION, len(payload), hashlib.sha256(payload).digest()) + payload


def decode(data: bytes, *, folded: bool = False) -> Bundle:
    """The whole plan in the bytes of a plan file; if `folded`, as they say it, with a repeated layer once.

    Raises PlanFault if they are no valid plan.
    """
    length, digest = _read_header(data[: HEADER.size])
    return _open_payload(memoryview(data)[HEADER.size :], length, digest, folded)


def is_decoded(bundle: Bundle) -> bool:
    """Whether `decode` or `read_bundle` has made this very object: then it is valid, and needs no second look."""
    return _decoded.get(id(bundle)) is bundle


def hash_payload(bundle: Bundle) -> bytes:
    """The SHA-256 of a plan's payload, which is in the header of its file if that says nothing once for all layers."""
    return hashlib.sha256(_encoder.encode(bundle)).digest()


def read_bundle(path: str | os.PathLike[str], *, folded: bool = False) -> Bundle:
    """The plan in a file, pipe or device, `-` being standard input; reads no more than its header announces.

    `folded` is as for `decode`.
    Raises PlanFault where the content is no valid plan, OSError where it cannot be read.
    """
    if os.fspath(path) == "-":
        return _read_stream(sys.stdin.buffer, folded)
    with open(path, "rb") as stream:
        return _read_stream(stream, folded)


def _read_stream(stream: IO[bytes], folded: bool = False) -> Bundle:
    length, digest = _read_header(_read_up_to(stream, HEADER.size))
    return _open_payload(memoryview(_read_up_to(stream, length + 1)), length, digest, folded)


def _read_up_to(stream: IO[bytes], count: int) -> bytes:
    """The next `count` bytes, or all that there are. It reserves no memory for bytes that have not arrived."""
    chunks = []
    while count > 0 and (chunk := stream.read(min(count, _CHUNK))):
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def _read_header(header: bytes) -> tuple[int, bytes]:
    """Reads the length and the checksum of the payload."""
    if header[: len(MAGIC)] != MAGIC[: len(header)] or not header:
        hint = "`einc compile MODEL.ein -o PLAN` makes one"
        raise PlanFault("this is not a plan file: it does not begin with the mark of plans", hint=hint)
    if len(header) < HEADER.size:
        raise PlanFault(f"the plan is truncated: it ends after {len(header)} of the {HEADER.size} bytes of its header")
    _, version, length, digest = HEADER.unpack(header)
    if version != SCHEMA_VERSION:
        side = "einc" if version > SCHEMA_VERSION else "plan"
        hint = "compile the model again with this einc" + (", or install a newer one" if side == "einc" else "")
        message = f"the plan has schema version {version}, and this einc reads version {SCHEMA_VERSION}"
        raise PlanFault(f"{message}: the {side} is too old", hint=hint)
    if length > MAX_PAYLOAD_BYTES:
        raise PlanFault(f"the plan announces {length} bytes; no plan may take more than {MAX_PAYLOAD_BYTES}")
    return length, digest


def _open_payload(payload: memoryview, length: int, digest: bytes, folded: bool) -> Bundle:
    if len(payload) < length:
        raise PlanFault(f"the plan is truncated: {len(payload)} of its {length} bytes are here")
    if len(payload) > length:
        raise PlanFault(f"more bytes follow the {length} that the plan announces")
    if hashlib.sha256(payload).digest() != digest:
        raise PlanFault("the plan is damaged: its checksum does not match", hint="copy or compile it again")
    try:
        bundle = _decoder.decode(payload)
        canonical = _encoder.encode(bundle)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise PlanFault(f"the payload does not follow the schema: {escape_text(str(error))}") from None
    if canonical != payload:
        raise PlanFault("the payload is not in canonical form (duplicate keys, key order, or number width)")
    if not folded:
        bundle = unfold(bundle)
    validate(bundle)
    if bundle.repetition is None:
        _decoded[id(bundle)] = bundle
    return bundle
