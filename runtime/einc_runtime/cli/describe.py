"""The command `describe`: what a plan takes and gives, and what running it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option
from einc_runtime.text import format_count, format_memory

if TYPE_CHECKING:
    from einc_runtime.plan.schema import Bundle, Tensor


@command(
    "describe",
    "PROGRAM describe ffn.bin",
    "PROGRAM describe ffn.bin --json",
    short_help="Show what a plan takes, gives and needs.",
)
@click.argument("plan", metavar="PLAN")
@json_option
def describe_command(plan: str, as_json: bool) -> None:
    """Show what a plan takes and gives, and what running it needs.

    `einc explain`, which the compiler has, also says how every operator is cut and why.
    """
    document = describe_plan(files.read_plan(plan))
    if as_json:
        output.say_json(document)
    else:
        output.say("\n".join(format_lines(document)))


def describe_plan(bundle: Bundle) -> dict[str, Any]:
    """The JSON document of a plan."""
    return {
        "model": bundle.model,
        "producer": bundle.producer,
        "machine": bundle.machine,
        "devices": list(bundle.devices),
        "selector": bundle.selector,
        "schedule": bundle.schedule,
        "input_placement": bundle.input_placement,
        "reproducible": bundle.reproducible,
        "inputs": [_describe_tensor(tensor) for tensor in bundle.tensors if tensor.kind == "input"],
        "weights": [
            {**_describe_tensor(tensor), "stored": tensor.stored or tensor.name}
            for tensor in bundle.tensors
            if tensor.kind == "weight"
        ],
        "states": [_describe_tensor(tensor) for tensor in bundle.tensors if tensor.kind == "state"],
        "outputs": [_describe_tensor(bundle.tensors[out.tensor]) for out in bundle.outputs],
        "operators": len(bundle.operations),
        "tasks": len(bundle.tasks),
        "memory_bytes": list(bundle.memory),
        "total_cost": bundle.total_cost,
        "predicted_ms": bundle.predicted_ms,
    }


def _describe_tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "dims": list(tensor.dims), "shape": list(tensor.shape)}


def format_lines(document: dict[str, Any], trust: str | None = None) -> list[str]:
    """The document as text. The predicted time is left out where `trust` does not say what it is worth, as only the
    compiler knows what was measured of a machine."""
    sites = format_count(len(document["devices"]), "site")
    predicted = document["predicted_ms"]
    time = "" if predicted is None or trust is None else f", predicted {predicted:.3f} ms{trust}"
    operators, tasks = format_count(document["operators"], "operator"), format_count(document["tasks"], "task")
    lines = [
        f"{document['model']}: a plan for {sites} of {document['machine']}, made by {document['producer']}",
        f"{operators}, {tasks}, cost {document['total_cost']:,}{time}",
        *(["reproducible: the same bits for any number of sites"] if document["reproducible"] else []),
        f"memory: at most {format_memory(max(document['memory_bytes'], default=0))} on a site",
    ]
    for role in ("inputs", "weights", "states", "outputs"):
        lines += [f"{role}:", *(f"  {_format_tensor(tensor)}" for tensor in document[role])] if document[role] else []
    return lines


def _format_tensor(tensor: dict[str, Any]) -> str:
    dims = ", ".join(f"{name}={extent}" for name, extent in zip(tensor["dims"], tensor["shape"], strict=True))
    stored = tensor.get("stored", tensor["name"])
    return f"{tensor['name']} {tensor['dtype']}[{dims}]" + (
        f" (stored as {stored})" if stored != tensor["name"] else ""
    )
