"""The document of `einc explain` as tables of flat rows, for programs that work with tables."""

from __future__ import annotations

from einc.report.tables import format_cut
from einc_runtime.strict_json import Document

Table = list[Document]


def list_tables(document: Document) -> dict[str, Table]:
    """`operators`, `exchanges`, `links`, `sites` and `contenders`: rows of numbers and texts, all with the same names.

    Times are in ms, amounts in bytes, costs in elements; what is not known is None.
    """
    weights = document["weights"]
    site_ms = None if document["time"] is None else document["time"]["site_ms"]
    return {
        "operators": [_flatten_operator(operation) for operation in document["ops"]],
        "exchanges": _list_exchanges(document),
        "links": [dict(link) for link in document["time"]["links"]] if document["time"] is not None else [],
        "sites": [
            {
                "site": site,
                "device": document["sites"][site],
                "memory_bytes": memory,
                "weight_bytes": sum(row["site_bytes"][site] for row in weights),
                "busy_ms": None if site_ms is None else site_ms[site],
            }
            for site, memory in enumerate(document["memory_bytes"])
        ],
        "contenders": [dict(row) for row in document["contenders"]],
    }


_TIMES = ("start_ms", "end_ms", "compute_ms", "combine_ms", "waiting_ms", "exchange_ms", "critical_ms")


def _flatten_operator(operation: Document) -> Document:
    time = operation["time"] or dict.fromkeys(_TIMES)
    return {
        "name": operation["name"],
        "op": operation["op"],
        "cut": format_cut(operation),
        "sites": len({spec["site"] for spec in operation["specs"]}),
        "transfers": operation["moves"]["transfers"],
        "moved_bytes": operation["moves"]["bytes"],
        **{name: time[name] for name in _TIMES},
        **operation["cost"],
    }


def _list_exchanges(document: Document) -> Table:
    parts = [(op["name"], op["exchange"]) for op in document["ops"]]
    parts += [(f"output {output['name']}", output["exchange"]) for output in document["outputs"]]
    fields = ("completion_ms", "naive_ms", "bound_ms", "bound_free_ms", "bound_by", "author")
    return [
        {"name": name, **{field: exchange[field] for field in fields}}
        for name, exchange in parts
        if exchange is not None
    ]
