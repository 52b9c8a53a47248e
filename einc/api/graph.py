"""A graph: its inputs and weights, what is saved, and running it once it is compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from einc.api.arguments import check_name, check_size
from einc.api.operators import GraphOperators
from einc.api.plan import Plan
from einc.api.tensor import Tensor
from einc.core.tensor import Array, TensorDesc
from einc.errors import UsageError

if TYPE_CHECKING:
    from einc.compiler import Compiled
    from einc.graph.graph import Graph as ComputationGraph
    from einc_runtime.execution.session import Session


class Graph(GraphOperators):
    """A computation: first it is built, then compiled, then run."""

    def __init__(self, name: str = "graph") -> None:
        super().__init__(name)
        self._plan: Plan | None = None
        self._session: Session | None = None
        self._missing: set[str] = set()
        self._executed = False
        self._saved: set[str] = set()

    # Building

    def insertTensor(self, desc: TensorDesc, name: str | None = None) -> Tensor:
        """An input of the computation, to be filled by `load`."""
        return self._find(self._builder.input(self._read_new(desc, name, "insertTensor", "x"), desc))

    def insertWeight(self, desc: TensorDesc, name: str | None = None, stored: str | None = None) -> Tensor:
        """A weight, to be filled by `load` or `loadWeights`; `stored` is its name in weight files, as after `from`."""
        if stored is not None:
            check_name(stored)
        return self._find(self._builder.weight(self._read_new(desc, name, "insertWeight", "w"), desc, stored))

    def save(self, tensor: Tensor, name: str | None = None) -> Tensor:
        """Mark a tensor as an output of the plan, under its own name or a new one; returns it.

        With a new name, an input or weight, or what is saved already, is copied, and the copy is returned.
        """
        self._descs(tensor)
        if name is not None and name != tensor.name:
            if self._builder.unique_name(check_name(name)) != name:
                raise UsageError(f"there is already a tensor '{name}'", hint="give the output another name")
            if tensor.key in self._saved or not self._builder.is_computed(tensor.name):
                tensor = self.unary(tensor, "copy", name=name)
            else:
                self._names[tensor.key] = self._builder.rename(tensor.name, name)
        self._builder.save(tensor.name)
        self._saved.add(tensor.key)
        return tensor

    # Running

    def load(self, tensor: Tensor, array: Any) -> None:
        """Give an input or weight its values, which stay until it is loaded again.

        The array must have the tensor's shape and dtype; float32 is rounded for a bf16 tensor.
        """
        session = self._require_session("load")
        self._require_own(tensor)
        session.load(tensor.name, array)
        self._missing.discard(tensor.name)
        self._executed = False

    def loadWeights(self, source: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """Give all weights their values: from a safetensors file, a folder, an .npz file, "rand:SEED", or a mapping."""
        self._require_session("loadWeights").load_weights(source)
        self._executed = False

    def execute(self) -> float:
        """Run the plan; returns the time it took in milliseconds."""
        session = self._require_session("execute")
        if self._missing:
            raise UsageError(f"execute before load: nothing was loaded for {', '.join(sorted(self._missing))}")
        took = session.execute()
        self._executed = True
        return took

    def offload(self, tensor: Tensor) -> Array:
        """The values of a saved tensor after execution."""
        session = self._require_session("offload")
        self._require_own(tensor)
        if tensor.key not in self._saved:
            raise UsageError(f"'{tensor.name}' was not saved", hint="call graph.save(tensor) before compileGraph")
        if not self._executed:
            raise UsageError("offload before execute: the loaded inputs have not been computed with yet")
        return session.offload(tensor.name)

    # Helpers

    def _read_new(self, desc: TensorDesc, name: str | None, call: str, letter: str) -> str:
        if not isinstance(desc, TensorDesc):
            raise UsageError(f"{call} takes what tensorDesc returns, not {desc!r:.80}")
        self._require_open()
        check_size(desc)
        return self._builder.unique_name(letter) if name is None else check_name(name)

    def _require_open(self) -> None:
        if self._plan is not None:
            raise UsageError(
                "the graph is compiled already, and cannot be added to", hint="start another createGraph()"
            )

    def _require_session(self, action: str) -> Session:
        if self._plan is None:
            raise UsageError(f"{action} before compileGraph: the graph has no plan yet")
        if self._session is None:
            from einc_runtime.execution.session import Session as RuntimeSession

            self._session = RuntimeSession(self._plan.bundle)
        return self._session

    def _take_plan(self, compiled: Compiled) -> Plan:
        """Keeps the plan of a compilation of this graph."""
        bundle = compiled.bundle
        self._session = None
        self._executed = False
        self._missing = {tensor.name for tensor in bundle.tensors if tensor.kind == "input"}
        self._plan = Plan(bundle, tuple(compiled.proposals), compiled.graph)
        return self._plan

    def _add_gradients(self, loss: Tensor, wrt: Sequence[Tensor]) -> list[Tensor]:
        """What `einc.grad` does."""
        from einc.training.gradients import add_gradients, choose_tensors

        self._require_open()
        self._descs(loss, *wrt)
        if not self._builder.is_computed(loss.name):
            raise UsageError(f"the loss '{loss.name}' is not computed")
        names = choose_tensors(self._builder.build(), loss.name, [tensor.name for tensor in wrt])
        gradients = add_gradients(self._builder, loss.name, names)
        return [self._find(gradients[tensor.name]) for tensor in wrt]

    def _build(self) -> ComputationGraph:
        if not self._saved:
            raise UsageError("nothing was saved: a graph without outputs computes nothing", hint="call graph.save(y)")
        return self._builder.build()
