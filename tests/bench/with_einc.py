"""The plan, in a session as any user makes one."""

from __future__ import annotations

from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import drawn, sentences


def prepared(bundle: Bundle, folder: str):
    session = Session(bundle)
    if folder:
        session.load_weights(folder)
        ids, mask = sentences()
        session.load_all({"ids": ids, "mask": mask})
    else:
        session.load_all(drawn(bundle))
    return session.execute, lambda: session.offload(session.outputs[0].name)
