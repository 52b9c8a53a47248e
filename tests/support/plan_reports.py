"""Plans with other figures in their report section."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from einc.plan_report import encode_report, read_report
from einc_runtime.plan.codec import HEADER, encode
from einc_runtime.plan.schema import Bundle

VERSION_BYTES = 4
Tree = Any


def change_report(bundle: Bundle, **fields: Any) -> Bundle:
    """The plan with other fields in its report."""
    return msgspec.structs.replace(bundle, report=encode_report(msgspec.structs.replace(read_report(bundle), **fields)))


def open_payload(payload: bytes) -> Tree:
    """A plan's payload as msgpack reads it, with its report as a part of it, and with the fields that have their
    defaults, which a payload leaves out."""
    tree = _list_fields(msgspec.msgpack.decode(payload, type=Bundle))
    tree["report"] = {"version": tree["report"][:VERSION_BYTES], **msgpack.unpackb(tree["report"][VERSION_BYTES:])}
    return tree


def _list_fields(value: Any) -> Any:
    """A value of a plan as maps, lists and scalars, with all fields of its records."""
    if isinstance(value, msgspec.Struct):
        names = value.__struct_encode_fields__
        fields = {name: _list_fields(field) for name, field in zip(names, msgspec.structs.astuple(value), strict=True)}
        config = value.__struct_config__
        if config.array_like:
            return [*fields.values()]
        return fields if config.tag is None else {config.tag_field: config.tag, **fields}
    if isinstance(value, dict):
        return {name: _list_fields(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_list_fields(item) for item in value]
    return value


def close_payload(tree: Tree) -> bytes:
    """The payload of such a tree; a report that is no map any more stands as it is."""
    report = tree["report"]
    if isinstance(report, dict):
        fields = {name: value for name, value in report.items() if name != "version"}
        tree = tree | {"report": report["version"] + msgpack.packb(fields)}
    try:
        return encode(msgspec.convert(tree, Bundle))[HEADER.size :]
    except msgspec.ValidationError:  # no plan: it stands as it is
        return msgpack.packb(tree)  # type: ignore[no-any-return]
