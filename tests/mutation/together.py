"""Changes of several records that fit together, so that checks of one record against another miss them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from tests.mutation.fields import Edit, Tree
from tests.mutation.states import change_states, change_steps

Block = list[list[int]]


def list_joint_edits(tree: Tree) -> Iterator[tuple[str, str, Edit]]:
    """Of every change: its kind, its name, and the change itself."""
    for listed in (
        _exchange_blocks, _move_bounds, _change_attributes, _exchange_operands, _rename_weights, _change_tasks,
        _change_operations, _scale_figures, _rename, _exchange_sites, change_states, change_steps,
    ):  # fmt: skip
        for name, edit in listed(tree):
            yield listed.__name__.strip("_").replace("_", " "), name, edit


def _places(tree: Tree, tensor: int) -> dict[str, list[tuple[Any, Any]]]:
    """Where blocks of a tensor stand, as containers and keys, by the kind of record."""
    found: dict[str, list[tuple[Any, Any]]] = {"functions": [], "buffers": [], "reads": [], "writes": [], "outputs": []}
    for operation in tree["operations"]:
        for side in ("inputs", "outputs"):
            for k, position in enumerate(operation[side]):
                if position == tensor:
                    found["functions"] += [(function[side], k) for function in operation["functions"]]
    own = {n for n, buffer in enumerate(tree["buffers"]) if buffer["tensor"] == tensor}
    found["buffers"] = [(tree["buffers"][n], "block") for n in own]
    for task in tree["tasks"]:
        for side in ("read", "write"):
            regions = [task[side]] if side in task else task.get(side + "s", [])
            found[side + "s"] += [(region, 1) for region in regions if region[0] in own]
    for output in tree["outputs"]:
        found["outputs"] += [(region, 1) for region in output["regions"] if region[0] in own]
    return found


def _shape(block: Block) -> list[int]:
    return [up - lo for lo, up in zip(*block, strict=True)]


def _exchange_blocks(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """Two blocks of one shape: in all records of a tensor, or in those of one kind; also one put for the other."""
    for t in range(len(tree["tensors"])):
        places = _places(tree, t)
        blocks: list[Block] = []
        for holder, key in itertools.chain(*places.values()):
            if holder[key] not in blocks:
                blocks.append(holder[key])
        pairs = [(a, b) for a, b in itertools.combinations(blocks, 2) if _shape(a) == _shape(b)]
        scopes = [("everywhere", tuple(places)), *((kind, (kind,)) for kind in places)]
        scopes.append(("tasks and buffers", ("buffers", "reads", "writes")))
        for (a, b), (scope, kinds), both in itertools.product(pairs[:6], scopes, (True, False)):
            names = f"tensors.{t}:{a} {'and' if both else 'put as'} {b} in {scope}"

            def edit(tree: Tree, t: int = t, a: Block = a, b: Block = b, kinds: Any = kinds, both: bool = both) -> None:
                for kind in kinds:
                    for holder, key in _places(tree, t)[kind]:
                        block = holder[key]
                        holder[key] = b if block == a else a if both and block == b else block

            yield names, edit


def _move_bounds(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """A bound between blocks of a tensor: one further in all of its blocks; with the intervals, and without."""
    for t, tensor in enumerate(tree["tensors"]):
        for d, extent in enumerate(tensor["shape"]):
            bounds = {holder[key][1][d] for holder, key in itertools.chain(*_places(tree, t).values())}
            for bound, intervals in itertools.product(sorted(bounds - {extent}), (True, False)):

                def edit(tree: Tree, t: int = t, d: int = d, bound: int = bound, intervals: bool = intervals) -> None:
                    for holder, key in itertools.chain(*_places(tree, t).values()):
                        lower, upper = ([x + (k == d and x == bound) for k, x in enumerate(e)] for e in holder[key])
                        holder[key] = [lower, upper]
                    for operation in tree["operations"] if intervals else ():
                        for index in operation["indices"]:
                            cut = index["intervals"]
                            index["intervals"] = [[x + (x == bound) for x in ends] for ends in cut]

                yield f"tensors.{t}:bound {bound} of dimension {d}{' and intervals' if intervals else ''}", edit


def _change_attributes(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """An attribute of an operator and the kernel's of the same name, alike."""
    for o, operation in enumerate(tree["operations"]):
        for name, value in operation["attributes"].items():
            for way, other in _other_attributes(value):

                def edit(tree: Tree, o: int = o, name: str = name, value: Any = value, other: Any = other) -> None:
                    one = tree["operations"][o]
                    one["attributes"][name] = other
                    if one["kernel_attributes"].get(name) == value:
                        one["kernel_attributes"][name] = other

                yield f"operations.{o}.attributes.{name}:{way}", edit


def _other_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield "not", not value
    elif isinstance(value, int | float):
        yield from (("more", value + 1), ("less", value - 1), ("twice", value * 2), ("zero", value * 0))
    elif isinstance(value, list) and len(value) > 1:
        yield from (("reversed", value[::-1]), ("rotated", value[1:] + value[:1]))
    elif isinstance(value, str):
        for pair in (("add", "sub"), ("mul", "add"), ("max", "min"), ("relu", "abs"), ("sum", "max"), ("silu", "tanh")):
            if pair[0] in value:
                yield f"{pair[1]} for {pair[0]}", value.replace(*pair, 1)


def _exchange_operands(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """Two operands, or two results, of an operation: in the operation alone, in what its tasks do alone, or in both."""
    for o, operation in enumerate(tree["operations"]):
        for side, regions in (("inputs", "reads"), ("outputs", "writes")):
            for a, b in itertools.combinations(range(len(operation[side])), 2):
                for who in ("both", "operation", "tasks"):

                    def edit(
                        tree: Tree, o: int = o, side: str = side, regions: str = regions, a: int = a, b: int = b,
                        who: str = who,
                    ) -> None:  # fmt: skip
                        one, lists = tree["operations"][o], []
                        if who != "tasks":
                            lists += [one[side], *(function[side] for function in one["functions"])]
                        if who != "operation":
                            own = [task for task in tree["tasks"] if task.get("operation") == o]
                            lists += [task[regions] for task in own]
                        for held in lists:
                            held[a], held[b] = held[b], held[a]

                    yield f"operations.{o}.{side}:{a} and {b} of {who}", edit


def _rename_weights(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """Names in files: two exchanged, rows moved or fewer, a layer for another."""
    stored = [t for t, tensor in enumerate(tree["tensors"]) if tensor["stored"] is not None]
    for a, b in list(itertools.combinations(stored, 2))[:20]:

        def exchange(tree: Tree, a: int = a, b: int = b) -> None:
            one, other = tree["tensors"][a], tree["tensors"][b]
            one["stored"], other["stored"] = other["stored"], one["stored"]

        yield f"tensors.{a}.stored:exchanged with {b}", exchange
    for t in stored:
        rows = re.search(r"\[(\d+):(\d+)\]", tree["tensors"][t]["stored"])
        for by in (1, -1, 4) if rows else ():

            def shift(tree: Tree, t: int = t, by: int = by) -> None:
                tensor = tree["tensors"][t]
                tensor["stored"] = re.sub(
                    r"\[(\d+):(\d+)\]", lambda m: f"[{max(0, int(m[1]) + by)}:{int(m[2]) + by}]", tensor["stored"]
                )

            yield f"tensors.{t}.stored:rows by {by}", shift


def _change_tasks(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """A task left out, doubled, on another site, or before the one before it; a dependency left out."""
    count, sites = len(tree["tasks"]), len(tree["devices"])
    for n in range(count):

        def leave_out(tree: Tree, n: int = n) -> None:
            gone = tree["tasks"].pop(n)
            for task in tree["tasks"]:
                after = {*task["after"]}
                after = (after - {n}) | {*gone["after"]} if n in after else after
                task["after"] = sorted(a - (a > n) for a in after)

        def double(tree: Tree, n: int = n) -> None:
            for task in tree["tasks"]:
                task["after"] = [a + (a > n) for a in task["after"]]
            tree["tasks"].insert(n + 1, {**tree["tasks"][n], "after": sorted({*tree["tasks"][n]["after"], n})})

        def go_before(tree: Tree, n: int = n) -> None:
            tasks = tree["tasks"]
            tasks[n - 1], tasks[n] = tasks[n], tasks[n - 1]
            for task in tasks:
                task["after"] = sorted({n - 1: n, n: n - 1}.get(a, a) for a in task["after"])

        def move(tree: Tree, n: int = n) -> None:
            tree["tasks"][n]["site"] = (tree["tasks"][n]["site"] + 1) % sites

        def wait_for_all(tree: Tree, n: int = n) -> None:
            tree["tasks"][n]["after"] = list(range(n))

        for name, edit in (("left out", leave_out), ("doubled", double), ("moved", move), ("waits", wait_for_all)):
            yield f"tasks.{n}:{name}", edit
        if n:
            yield f"tasks.{n}:before the one before", go_before
        for k in range(len(tree["tasks"][n]["after"])):

            def forget(tree: Tree, n: int = n, k: int = k) -> None:
                tree["tasks"][n]["after"].pop(k)

            yield f"tasks.{n}.after:without number {k}", forget


def _change_operations(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """The aggregation of an operation and of its tasks; the kernel of another operation with its attributes."""
    for o, operation in enumerate(tree["operations"]):
        for aggregation in ("sum", "max", "min", "prod"):

            def aggregate(tree: Tree, o: int = o, aggregation: str = aggregation) -> None:
                one = tree["operations"][o]
                one["aggregations"] = [aggregation] * len(one["aggregations"])
                for task in tree["tasks"]:
                    if task["kind"] == "aggregate":
                        made = {tree["buffers"][region[0]]["tensor"] for region in task["writes"]}
                        if made & {*one["outputs"]}:
                            task["aggregation"] = aggregation

            if [aggregation] * len(operation["aggregations"]) != operation["aggregations"]:
                yield f"operations.{o}.aggregations:{aggregation} with tasks", aggregate
        for other in range(len(tree["operations"])):
            if other == o:
                continue

            def take_kernel(tree: Tree, o: int = o, other: int = other) -> None:
                one, source = tree["operations"][o], tree["operations"][other]
                for field in ("kernel", "kernel_attributes", "family", "attributes", "title"):
                    one[field] = source[field]

            yield f"operations.{o}:kernel of {other}", take_kernel


def _scale_figures(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """All figures of one name together."""
    owners = [part["exchange"] for field in ("operations", "outputs") for part in tree[field] if part["exchange"]]
    for field in ("completion_ms", "naive_ms", "bound_ms", "bound_free_ms", "bound_by"):
        for way in ("one", "half", "none") if owners else ():

            def scale(tree: Tree, field: str = field, way: str = way) -> None:
                for part in (*tree["operations"], *tree["outputs"]):
                    if part["exchange"] and part["exchange"][field] is not None:
                        value = part["exchange"][field]
                        known = isinstance(value, float)
                        part["exchange"][field] = {"one": 1.0, "half": value / 2 if known else value, "none": None}[way]

            if field != "bound_by" or way == "none":
                yield f"exchanges.{field}:{way}", scale
    for field in ("flops", "traffic"):

        def double(tree: Tree, field: str = field) -> None:
            for operation in tree["operations"]:
                for function in operation["functions"]:
                    function[field] *= 2

        yield f"functions.{field}:twice", double

    def deepen(tree: Tree) -> None:
        for operation in tree["operations"]:
            for function in operation["functions"]:
                if function["work"] is not None and function["work"]["kind"] == "product":
                    function["work"]["depth"] *= 2

    yield "functions.work.depth:twice", deepen
    for o in range(len(tree["operations"])):
        for field in ("repartition", "join", "aggregation"):

            def charge(tree: Tree, o: int = o, field: str = field) -> None:
                tree["operations"][o]["cost"][field] += 1
                tree["total_cost"] += 1

            yield f"operations.{o}.cost.{field}:one more with the total", charge


def _rename(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """A tensor under another name, with all that refers to it by name; two names exchanged."""
    names = [tensor["name"] for tensor in tree["tensors"]]
    for old, new in [(name, "other") for name in names] + list(itertools.combinations(names, 2))[:20]:

        def rename(tree: Tree, old: str = old, new: str = new) -> None:
            table = {old: new, new: old}
            for part in (*tree["tensors"], *tree["operations"]):
                part["name"] = table.get(part["name"], part["name"])
            for task in tree["tasks"]:
                task["serves"] = table.get(task["serves"], task["serves"])

        yield f"names:{old} and {new}", rename


def _exchange_sites(tree: Tree) -> Iterator[tuple[str, Edit]]:
    """Two functions' sites; the functions themselves, with their tasks' numbers and without; two sites throughout."""
    for o, operation in enumerate(tree["operations"]):
        for a, b in list(itertools.combinations(range(len(operation["functions"])), 2))[:4]:
            for way in ("sites", "functions", "functions and numbers"):

                def exchange(tree: Tree, o: int = o, a: int = a, b: int = b, way: str = way) -> None:
                    functions = tree["operations"][o]["functions"]
                    if way == "sites":
                        functions[a]["site"], functions[b]["site"] = functions[b]["site"], functions[a]["site"]
                        return
                    functions[a], functions[b] = functions[b], functions[a]
                    for task in tree["tasks"] if way == "functions and numbers" else ():
                        if task.get("operation") == o:
                            task["function"] = {a: b, b: a}.get(task["function"], task["function"])

                yield f"operations.{o}:{way} {a} and {b} exchanged", exchange
    for a, b in list(itertools.combinations(range(len(tree["devices"])), 2))[:6]:

        def exchange_throughout(tree: Tree, a: int = a, b: int = b) -> None:
            table = {a: b, b: a}
            functions = [function for operation in tree["operations"] for function in operation["functions"]]
            for part in (*functions, *tree["buffers"], *tree["tasks"]):
                part["site"] = table.get(part["site"], part["site"])
            memory = tree["memory"]
            memory[a], memory[b] = memory[b], memory[a]

        yield f"sites:{a} and {b} exchanged", exchange_throughout
