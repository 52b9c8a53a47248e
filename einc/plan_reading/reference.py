"""What a plan should compute: its operators' meaning on whole arrays, and how far roundings may move that."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from einc.core.tensor import Array
from einc.plan_reading.restore import restore_graph
from einc_runtime.plan.schema import Bundle
from einc_runtime.plan.states import STATE

DRAWS = 3
"""Random changes that are tried to see how far results move."""


def compute_outputs(
    bundle: Bundle, loaded: Mapping[str, Array], change: Callable[[Array], Array] | None = None
) -> dict[str, Array]:
    """The outputs of the unpartitioned computation, from the operators' meaning on whole arrays.

    `loaded` holds every input and weight; states that are not in it are zeros. The plan's cuts play no part, so that a
    run can be compared with the result. With `change`, every array is changed by it before operators read it.
    """
    import numpy as np

    from einc_runtime.dtypes import storage_dtype

    graph = restore_graph(bundle)
    uses = {name: len(readers) for name, readers in graph.consumers().items()}
    states = [tensor for tensor in bundle.tensors if tensor.kind == STATE]
    values = {state.name: np.zeros(state.shape, storage_dtype(state.dtype)) for state in states} | dict(loaded)
    if change is not None:
        values = {name: change(array) for name, array in values.items()}
    for node in graph.nodes:
        results = node.operator.reference(*(values[name] for name in node.inputs))
        changed = results if change is None else map(change, results)
        values.update(zip(node.outputs, changed, strict=True))
        for name in node.inputs:  # a value is dropped after its last use
            uses[name] -= 1
            if uses[name] == 0 and name not in graph.outputs:
                values.pop(name, None)
    return {name: values[name] for name in graph.outputs}


def measure_movements(bundle: Bundle, loaded: Mapping[str, Array], rounding: float) -> dict[str, float]:
    """How far each floating output moves if every value on the way to it is changed at random by up to `rounding` of
    itself: the most of a few draws. That says what roundings may do to a sum whose terms cancel."""
    import numpy as np

    exact = compute_outputs(bundle, loaded)
    moved = dict.fromkeys(exact, 0.0)
    for seed in range(DRAWS):
        for name, array in compute_outputs(bundle, loaded, _make_shaking(seed, rounding)).items():
            if array.dtype.kind not in "iub":
                distance = np.abs(array.astype(np.float64) - exact[name].astype(np.float64))
                moved[name] = max(moved[name], float(np.max(distance, initial=0.0, where=np.isfinite(distance))))
    return moved


def _make_shaking(seed: int, rounding: float) -> Callable[[Array], Array]:
    import numpy as np

    rng = np.random.default_rng(seed)

    def shake(array: Array) -> Array:
        if array.dtype.kind in "iub":
            return array
        changed: Array = array.astype(np.float64) * (1 + rounding * rng.uniform(-1, 1, array.shape))
        return changed

    return shake
