"""Changes of states, of the operations that write over them, and of the steps of several runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.mutation.fields import Edit, Tree


def change_states(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """A state as an input or weight, with all that follows from it; its bytes and its update's moved, or exchanged with
    those of another state; its old contents read in place of the new ones; a state whose part nothing updates."""
    updates = {
        one["outputs"][0]: one["inputs"][0] for one in tree["operations"] if "in_place" in one["kernel_attributes"]
    }
    for new, old in updates.items():
        for kind, role, in_place in itertools.product(("input", "weight", "state"), ("input", "state"), (True, False)):

            def make(
                tree: Tree,
                new: int = new,
                old: int = old,
                kind: str = kind,
                role: str = role,
                in_place: bool = in_place,
            ) -> None:
                tree["tensors"][old]["kind"] = kind
                for one in tree["operations"]:
                    for field in (
                        ("attributes", "kernel_attributes") if one["outputs"][0] == new and not in_place else ()
                    ):
                        del one[field]["in_place"]
                for buffer in tree["buffers"]:
                    if buffer["tensor"] in (old, new):
                        taken = kind if buffer["tensor"] == old else "scratch"
                        buffer["role"] = taken if role == "input" else "state"

            yield f"tensors.{old}:{kind}, {role} buffers, {'' if in_place else 'not '}in place", make
        for by, who in itertools.product((64, -64, 4096), ((old,), (new,), (old, new))):

            def move(tree: Tree, by: int = by, who: tuple[int, ...] = who) -> None:
                for buffer in tree["buffers"]:
                    buffer["offset"] += by * (buffer["tensor"] in who)
                tree["memory"] = [size + max(by, 0) for size in tree["memory"]]

            yield f"tensors.{old}:bytes of {who} by {by}", move
        for fields in (("inputs",), ("functions",), ("inputs", "functions")):
            for o, reader in enumerate(tree["operations"]):
                if new not in reader["inputs"]:
                    continue

                def read_old(
                    tree: Tree, new: int = new, old: int = old, o: int = o, fields: tuple[str, ...] = fields
                ) -> None:
                    if "inputs" in fields:
                        one = tree["operations"][o]
                        one["inputs"] = [old if position == new else position for position in one["inputs"]]
                    stores = {(b["site"], b["offset"]): n for n, b in enumerate(tree["buffers"]) if b["tensor"] == old}
                    for task in tree["tasks"] if "functions" in fields else ():
                        for region in task.get("reads", ()) if task.get("operation") == o else ():
                            buffer = tree["buffers"][region[0]]
                            if buffer["tensor"] == new:
                                region[0] = stores.get((buffer["site"], buffer["offset"]), region[0])

                yield f"operations.{o}:old {old} for {new} in {' and '.join(fields)}", read_old
    for (new, old), (other_new, other) in itertools.combinations(updates.items(), 2):
        for table in (
            {old: other, other: old},
            {new: other_new, other_new: new},
            {old: other, other: old, new: other_new, other_new: new},
        ):
            for places in (("buffers",), ("operations",), ("buffers", "operations")):

                def exchange(tree: Tree, table: dict[int, int] = table, places: tuple[str, ...] = places) -> None:
                    for buffer in tree["buffers"] if "buffers" in places else ():
                        buffer["tensor"] = table.get(buffer["tensor"], buffer["tensor"])
                    for one in tree["operations"] if "operations" in places else ():
                        for side in ("inputs", "outputs"):
                            one[side] = [table.get(position, position) for position in one[side]]

                yield f"states:{'/'.join(map(str, table))} exchanged in {' and '.join(places)}", exchange

        def exchange_bytes(tree: Tree, pairs: Any = ((old, other), (new, other_new))) -> None:
            for one, two in pairs:
                for first, second in itertools.product(tree["buffers"], repeat=2):
                    alike = first["site"] == second["site"] and first["block"] == second["block"]
                    if alike and (first["tensor"], second["tensor"]) == (one, two):
                        first["offset"], second["offset"] = second["offset"], first["offset"]

        yield f"states:bytes of {old} and {other} exchanged", exchange_bytes
        yield f"states:bytes of {old} and {other} exchanged before", partial(exchange_bytes, pairs=((old, other),))


def change_steps(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """What a step does to its sequences: the lengths of all operations, or of a family's, that have them alike. They
    have one more, one from another sequence, are reversed, or are one."""
    held = [one[field] for one in tree["operations"] for field in ("attributes", "kernel_attributes")]
    named = [value for values in held for name, value in values.items() if name.endswith("_lens")]
    families = sorted(
        {one["family"] for one in tree["operations"] if any("_lens" in name for name in one["attributes"])}
    )
    for lengths in sorted({tuple(value) for value in named}):
        ways = {"reversed": lengths[::-1], "as one": (sum(lengths),)}
        for k, m in itertools.product(range(len(lengths)), repeat=2):
            moved = tuple(length + (n == k) - (n == m != k) for n, length in enumerate(lengths))
            ways[f"number {k} more" if k == m else f"one of {m} to {k}"] = moved
        for (way, other), scope in itertools.product(ways.items(), ("all", *families)):

            def edit(tree: Tree, old: Any = lengths, new: Any = other, scope: str = scope) -> None:
                for one in tree["operations"]:
                    for field in ("attributes", "kernel_attributes") if scope in ("all", one["family"]) else ():
                        for name, value in one[field].items():
                            if name.endswith("_lens") and tuple(value) == old:
                                one[field][name] = list(new)

            yield f"lengths:{list(lengths)} {way} in {scope}", edit
