"""The plan, in a session as any user makes one."""

from __future__ import annotations

from einc_runtime.execution.session import Session
from einc_runtime.kernels.numpy import onednn
from einc_runtime.plan.schema import Bundle
from tests.bench.cases import MODULES
from tests.bench.inputs import drawn, sentences


def hide_onednn() -> None:
    """Makes this process find no oneDNN. Raises ImportError where it is not installed."""
    if not onednn.find_files():
        raise ImportError("oneDNN is not installed", name="onednn")
    onednn.find_files = list


def prepared(bundle: Bundle, folder: str):
    session = Session(bundle)
    if bundle.model in MODULES:
        from tests.bench.modules import read_inputs

        session.load_weights(folder)
        session.load_all(read_inputs(bundle.model, [tensor.name for tensor in session.inputs]))
    elif folder:
        session.load_weights(folder)
        ids, mask = sentences(bundle)
        session.load_all({"ids": ids, "mask": mask})
    else:
        session.load_all(drawn(bundle))
    names = [output.name for output in session.outputs]
    compared = "logits" if "logits" in names else names[0]  # a prefill gives caches, too
    return session.execute, lambda: session.offload(compared)
