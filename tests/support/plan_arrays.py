"""What goes into a plan and comes out of it, by name: random inputs and weights, a session's outputs."""

from __future__ import annotations

from einc_runtime.execution.data.random_arrays import make_random_array


def arrays_of(bundle, seed=0, **arrays):
    """Everything that has to be loaded: drawn, but for what is given."""
    return {t.name: make_random_array(t, seed) for t in bundle.tensors if t.kind != "value"} | arrays


def outputs_of(session):
    return {tensor.name: session.offload(tensor.name) for tensor in session.outputs}


def results(session, arrays):
    """The outputs of one execution."""
    session.load_all(arrays)
    session.execute()
    return outputs_of(session)
