"""The weights of a plan: how many copies of each there are, and the bytes on every site that other sites hold too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from einc.core.spec import Overlay
from einc_runtime.plan.schema import ITEMSIZE, Block, Bundle, Tensor
from einc_runtime.strict_json import Document

SiteBlocks = tuple[frozenset[Block], ...]
"""The blocks of one weight on each site."""


def describe_tensor(tensor: Tensor) -> Document:
    """The name and the type of a tensor, as in every list of tensors."""
    return {"name": tensor.name, "dims": list(tensor.dims), "shape": list(tensor.shape), "dtype": tensor.dtype}


def describe_weights(bundle: Bundle) -> list[Document]:
    """For every weight: its bytes, how many copies of it there are in all, and the bytes that each site holds.

    `copies` is 1 if every element is on one site, and less if no operator reads all of it. `replicated_bytes`
    are, for each site, the bytes of elements that another site holds as well.
    """
    blocks: dict[int, list[set[Block]]] = {}
    for buffer in bundle.buffers:
        if buffer.role == "weight":
            sites = blocks.setdefault(buffer.tensor, [set() for _ in bundle.devices])
            sites[buffer.site].add(buffer.block)
    known: dict[tuple[tuple[int, ...], SiteBlocks], tuple[list[int], list[int]]] = {}
    rows = []
    for number, tensor in enumerate(bundle.tensors):
        if tensor.kind != "weight":
            continue
        held = tuple(map(frozenset, blocks.get(number, [set() for _ in bundle.devices])))
        key = (tuple(tensor.shape), held)
        if key not in known:  # the weights of repeated blocks are placed alike
            known[key] = _count_elements(*key)
        width = ITEMSIZE[tensor.dtype]
        tensor_bytes = Block.whole(tensor.shape).size * width
        all_of, replicated = ([count * width for count in counts] for counts in known[key])
        rows.append(
            {
                **describe_tensor(tensor),
                "stored": tensor.stored or tensor.name,
                "bytes": tensor_bytes,
                "copies": sum(all_of) / tensor_bytes,
                "site_bytes": all_of,
                "replicated_bytes": replicated,
            }
        )
    return rows


def _count_elements(shape: tuple[int, ...], held: Sequence[frozenset[Block]]) -> tuple[list[int], list[int]]:
    """The elements on each site, and those of them that lie on other sites too."""
    overlay = Overlay(Block.whole(shape), *held)
    cells = [{cell for block in blocks for cell in overlay.cells(block)} for blocks in held]
    sites_of = Counter(cell for on_site in cells for cell in on_site)
    return (
        [sum(cell.size for cell in on_site) for on_site in cells],
        [sum(cell.size for cell in on_site if sites_of[cell] > 1) for on_site in cells],
    )
