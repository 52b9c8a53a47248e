"""The process of one probe: it prints one JSON record, and may die of what it tries.

python tests/gpu worker probe NAME [--rehearse]
python tests/gpu worker links [--rehearse]           copies between all pairs of GPUs
"""

from __future__ import annotations

import faulthandler
import json
import signal
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from tests.gpu import primitives, probes_copies, probes_libraries, probes_nccl
from tests.gpu.places import Place, of
from tests.gpu.probe_bench import Absent, Bench, Broken

OK, FAILED, ABSENT = "ok", "failed", "absent"
LONGEST = 400
"""Characters of a reason."""
LINK_SIZES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
SMALL_LINK_SIZES = (64, 4096)

COPIES: dict[str, Callable[[Bench, int], str]] = {
    primitives.CAPTURE: probes_copies.capture,
    primitives.ROWS: probes_copies.rows,
    primitives.PINNED: probes_copies.pinned,
    primitives.PEERS: probes_copies.peers,
}
"""Probes that take a size in bytes, and run on the fake driver, too."""

LIBRARIES: dict[str, Callable[[Bench], str]] = {
    primitives.TRITON: probes_libraries.triton,
    primitives.SHARED: probes_libraries.shared,
    primitives.CUBLAS: probes_libraries.cublas,
    primitives.EPILOGUE: probes_libraries.epilogue,
    primitives.PRODUCTS: probes_libraries.products,
    primitives.POOLS: probes_libraries.pools,
    primitives.MULTIMEM: probes_libraries.multimem,
    primitives.NCCL: probes_nccl.nccl,
    primitives.CUDNN_GRAPH: probes_libraries.cudnn_graph,
    **{
        name: partial(probes_libraries.attention, name=name)
        for name in primitives.LIBRARIES
        if name != primitives.CUDNN_GRAPH
    },
}


def probe(name: str, place: Place) -> dict[str, Any]:
    """What became of one primitive: `ok` with a speed, `failed` with a reason, or `absent`, which is no fault."""
    begin, extra = perf_counter(), {}
    try:
        if name == primitives.DEVICES:
            detail, extra = _devices(place)
        elif name in LIBRARIES and place.rehearsal:
            raise Absent("needs a GPU")
        else:
            with place.parts(place.gpus) as (driver, kernels):
                bench = Bench(driver, kernels)
                size = probes_copies.SMALL if place.rehearsal else probes_copies.SIZE
                detail = COPIES[name](bench, size) if name in COPIES else LIBRARIES[name](bench)
        status = OK
    except Absent as reason:
        status, detail = ABSENT, str(reason)
    except Broken as reason:
        status, detail = FAILED, str(reason)
    except Exception as error:
        said = error.render() if hasattr(error, "render") else str(error)
        status, detail = FAILED, f"{type(error).__name__}: {said}"
    shown = " ".join(detail.split())[:LONGEST]
    return {"probe": name, "status": status, "detail": shown, "seconds": round(perf_counter() - begin, 2), **extra}


def _devices(place: Place) -> tuple[str, dict[str, Any]]:
    with place.parts(place.gpus) as (driver, kernels):
        probes_copies.require_same_after_copies(Bench(driver, kernels))
        count = driver.device_count()
        targets = [driver.target(device) for device in range(count)]
        told = [
            f"{target.device}: {target.name}, {target.architecture}, {target.multiprocessors} multiprocessors, "
            f"{driver.memory(target.device)[0] / 2**30:.0f} GiB free"
            for target in targets
        ]
        return "; ".join(told), {"gpus": count}


def links(place: Place) -> dict[str, Any]:
    with place.parts(place.gpus) as (driver, kernels):
        benches = [Bench(driver, kernels, device) for device in range(driver.device_count())]
        return {"links": probes_copies.links(benches, SMALL_LINK_SIZES if place.rehearsal else LINK_SIZES)}


def main(arguments: list[str]) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    place, (what, *rest) = of(arguments)
    print(json.dumps(probe(rest[0], place) if what == "probe" else links(place)), flush=True)
