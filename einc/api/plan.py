"""What `compile` and `compileGraph` return."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from einc.graph.graph import Graph as ComputationGraph
    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle

Weights = str | os.PathLike[str] | Mapping[str, Any]
"""A safetensors file, a folder of them, an .npz file, `rand:SEED`, or arrays by their names in files."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proved of a plan, and what was not, as sentences; printed, it is a list of them."""

    proved: tuple[str, ...]
    unproved: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(["proved:", *(f"    {line}" for line in self.proved),
                          "not proved:", *(f"    {line}" for line in self.unproved)])  # fmt: skip


@dataclass(frozen=True)  # no slots: it remembers its session
class Plan:
    """A compiled model: `bundle` is everything that `einc run` and `einc explain` need.

    Printed, it is the three lines that `einc explain` begins with: its time, what limits it, and what to try.

    `proposals` has a line on every program that a proposer wrote, and `graph` is the model as it was planned.
    `stored_shapes` are those of a module's weights, by their names there.
    """

    bundle: Bundle
    proposals: tuple[str, ...] = ()
    graph: ComputationGraph | None = field(default=None, repr=False, compare=False)
    stored_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    _losses: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _parts: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        bundle = self.bundle
        where = f"{len(bundle.devices)} sites of {bundle.machine}"
        time = "" if bundle.predicted_ms is None else f", predicted {bundle.predicted_ms:.3g} ms"
        return f"<plan of {bundle.model} for {where}{time}>"

    def __str__(self) -> str:
        from einc.report.summary import summarize_plan

        document = self.explain()
        return "\n".join(summarize_plan(document))

    @property
    def cost(self) -> int:
        """The paper's proxy of communication, in elements."""
        return self.bundle.total_cost

    @property
    def milliseconds(self) -> float | None:
        """The predicted time of the plan on its machine."""
        return self.bundle.predicted_ms

    @property
    def millisecondsRange(self) -> tuple[float, float] | None:
        """Between which times four in five such plans end; None where nothing was fitted to the machine's GPUs."""
        from einc.report.times import describe_prediction

        span = describe_prediction(self.bundle)["predicted_range_ms"]
        return None if span is None else tuple(span)

    @property
    def rates(self) -> str:
        """Where times of kernels come from: `measured` on the machine, `fitted` to measurements of its GPUs, or the
        `peak` rates of its file, of which nothing was measured."""
        from einc.plan_reading.timing import read_plan_machine
        from einc.predict.ranges import name_rates

        return name_rates(read_plan_machine(self.bundle))

    @cached_property
    def session(self) -> Session:
        """The session that `run` uses: on GPUs where some are visible, else on the CPU. The plan is proved first."""
        from einc_runtime.execution.session import Session as RuntimeSession

        return RuntimeSession(self.bundle)

    def loadWeights(self, source: Weights) -> Plan:
        """Load all weights, which stay; returns the plan. Raises ArrayFault for what does not fit."""
        self.session.load_weights(source)
        return self

    def run(self, *arrays: Any, **named: Any) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """Run the plan on arrays, in the order of its inputs or by their names; returns the outputs by name.

        One mapping in place of the arrays has them by name, too. Arrays may be of numpy or of any library that has
        `__dlpack__`. Raises ArrayFault for inputs that are missing, unknown or do not fit, and where no weights were
        loaded.
        """
        return self.session.run(_name_arrays([tensor.name for tensor in self.session.inputs], arrays, named))

    def trainStep(
        self, *arrays: Any, learning_rate: float, accumulate: tuple[int, int] = (1, 1), **named: Any
    ) -> float:
        """Make one step of a plan that `compile(..., train=LOSS, optimizer=NAME)` has made; returns its loss.

        Arrays are as for `run`; steps are counted from 1, by the plan. Weights, which are loaded before, and what the
        optimizer keeps are states: `session.offload(name)` gives them as they are. With `accumulate=(n, parts)`, this
        is part n of a step of so many, counted from 1, for a plan of `compile(..., accumulate=True)`: the last one
        changes the weights. Raises ArrayFault as `run` does.
        """
        from einc.training.control import SHARE
        from einc.training_runs.step import list_data_inputs, run_part
        from einc_runtime.errors import ArrayFault

        given_arrays = _name_arrays(list_data_inputs(self.session), arrays, named)
        part, parts = accumulate
        adds_up = SHARE in {tensor.name for tensor in self.session.inputs}
        if not 1 <= part <= parts or (parts > 1 and not adds_up):
            hint = 'compile(model, train="loss", optimizer="adamw", accumulate=True) makes a plan that adds up parts'
            raise ArrayFault(f"the plan makes no part {part} of {parts} of a step", hint=hint)
        step, last = len(self._losses) + 1, part == parts
        loss = run_part(self.session, given_arrays, step, learning_rate, share=1 / parts, changes=last)
        self._parts[part - 1 :] = [loss]
        if last:
            self._losses.append(sum(self._parts) / len(self._parts))
            self._parts.clear()
        return loss

    def evaluate(self, *arrays: Any, **named: Any) -> float:
        """The loss of a training step on held-out arrays, which are as for `trainStep`: weights, and what the optimizer
        keeps, stay as they are. Raises ArrayFault as `run` does."""
        from einc.training_runs.step import list_data_inputs, measure_loss

        given_arrays = _name_arrays(list_data_inputs(self.session), arrays, named)
        return measure_loss(self.session, [given_arrays], len(self._losses))

    def saveCheckpoint(self, path: str | os.PathLike[str]) -> None:
        """Write weights, what the optimizer keeps, and the losses of all steps as a safetensors file, whole or not at
        all. `loadCheckpoint` goes on from there, `loadWeights` and `einc run --weights` take its weights, and
        `einc.readStateDict` those of a module. Raises WriteFault."""
        from einc.training_runs.checkpoints import NO_DATA, RunProgress, write_states
        from einc.training_runs.step import list_data_inputs

        list_data_inputs(self.session)
        write_states(path, self.session, RunProgress(0, NO_DATA, list(self._losses)))

    def loadCheckpoint(self, path: str | os.PathLike[str]) -> Plan:
        """Load what `saveCheckpoint` or `einc train` has written; the next step has the number after its last one.
        Returns the plan. Raises ArrayFault for a file that is none of this plan's; nothing is loaded then."""
        from pathlib import Path

        from einc.training_runs.checkpoints import read_checkpoint
        from einc.training_runs.step import list_data_inputs

        list_data_inputs(self.session)
        self._losses[:] = read_checkpoint(Path(path), self.session).losses
        self._parts.clear()
        return self

    def stateDict(self) -> dict[str, Any]:
        """The weights of a training step as they are now, as tensors of torch by their names in the module that was
        compiled, in its shapes: for `module.load_state_dict(plan.stateDict(), strict=False)`.
        Raises ArrayFault for a plan that trains nothing: its weights are those that were loaded."""
        import torch

        from einc.api.state_dict import join_rows
        from einc.training_runs.step import list_data_inputs
        from einc_runtime.execution.data.dlpack import as_dlpack
        from einc_runtime.plan.states import is_weight

        list_data_inputs(self.session)
        weights = [tensor for tensor in self.session.states if is_weight(tensor)]
        arrays = {tensor.stored or tensor.name: self.session.offload(tensor.name) for tensor in weights}
        joined = join_rows(arrays, self.stored_shapes)
        return {name: torch.from_dlpack(as_dlpack(array)) for name, array in joined.items()}

    def verify(self) -> Proof:
        """Prove the plan as `einc verify` does, and that it computes its model.

        Raises PlanFault at the first difference.
        """
        from einc.verification.figures import FIGURES_CLAIM, verify_figures
        from einc.verification.model import verify_model
        from einc_runtime.execution.proved_plans import require_proof
        from einc_runtime.plan.proof import PROVED

        require_proof(self.bundle)
        unproved = verify_figures(self.bundle)
        claims: tuple[str, ...] = (*PROVED, FIGURES_CLAIM)
        if self.graph is not None:
            verify_model(self.bundle, self.graph)
            claims += ("its operations and tensors are those of its model, no more and no less",)
        return Proof(claims, unproved)

    def explain(self) -> dict[str, Any]:
        """What `einc explain --json` prints."""
        from einc.report.document import explain

        return explain(self.bundle)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The same as tables of flat rows: `operators`, `exchanges`, `links`, `sites` and `contenders`."""
        from einc.report.flat_tables import list_tables

        return list_tables(self.explain())

    def writePage(self, path: str | os.PathLike[str]) -> None:
        """Write the page of `einc explain --html`, whole or not at all. Raises WriteFault."""
        from einc.report.html.page import write_plan_page
        from einc_runtime.disk import write_file

        data = write_plan_page(self.bundle).encode()
        write_file(path, lambda stream: stream.write(data))

    def _repr_html_(self) -> str:
        """That page in a frame, for notebooks; of a large plan its first section."""
        from einc.report.html.page import frame_plan_page

        return frame_plan_page(self.bundle)

    def toBytes(self) -> bytes:
        from einc_runtime.plan.codec import encode

        return encode(self.bundle)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file, as `write` does. Raises WriteFault.

        Weights are not in it: `einc run` is given them by `--weights`. Those of a module have the names of its
        `state_dict()`, so that `safetensors.torch.save_file(module.state_dict(), FILE)` writes them.
        """
        self.write(path)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file, whole or not at all. Raises WriteFault."""
        from einc_runtime.disk import write_file

        data = self.toBytes()
        write_file(path, lambda stream: stream.write(data))


def _name_arrays(names: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by the names of inputs: in their order, or as one mapping, and those that are named. Raises ArrayFault."""
    from einc_runtime.errors import ArrayFault

    if len(arrays) == 1 and isinstance(arrays[0], Mapping):
        ordered = dict(arrays[0])
    elif len(arrays) > len(names):
        raise ArrayFault(f"{len(arrays)} arrays were given, and the plan has {len(names)} inputs: {', '.join(names)}")
    else:
        ordered = dict(zip(names, arrays, strict=False))
    twice = sorted(ordered.keys() & named.keys())
    if twice:
        how = "in a mapping" if len(ordered) > len(arrays) else "in the order of the inputs"
        raise ArrayFault(f"input {', '.join(twice)} is given {how} and by its name")
    return {**ordered, **named}
