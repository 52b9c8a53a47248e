"""Structural verification of device programs, in about linear time, in every compilation.

The plan package checks buffers, tasks and outputs, as it does when a plan file is loaded. Here the operations are
compared with the logical plan. That the tasks compute the right values is proved from the plan file alone, by
`einc_runtime.plan.proof`.
"""

from __future__ import annotations

from einc.errors import InternalError
from einc.physical.memory import ALIGNMENT
from einc.physical.program import DeviceProgram
from einc_runtime.errors import PlanFault
from einc_runtime.plan.repetition import keep
from einc_runtime.plan.task_validation import validate_tasks
from einc_runtime.plan.validation import MAX_CORNERS


def verify(program: DeviceProgram) -> None:
    """Raises InternalError, naming the operator, task or buffer, at the first fault."""
    _verify_operations(program)
    for b, buffer in enumerate(program.buffers):
        if buffer.offset % ALIGNMENT:
            raise InternalError(f"buffer {b} lies at byte {buffer.offset}, which is no multiple of {ALIGNMENT}")
    try:
        validate_tasks(program, MAX_CORNERS)
    except PlanFault as fault:
        raise InternalError(fault.render()) from None
    saved = tuple(program.tensors[output.tensor].name for output in program.outputs)
    outputs = program.plan.graph.outputs
    if program.repetition is not None:
        repetition = program.repetition
        outputs = keep(outputs, repetition.outputs, repetition.head, len(repetition.copies))
    if saved != outputs:
        raise InternalError(f"the outputs {saved} are not those of the graph, {outputs}")


def _verify_operations(program: DeviceProgram) -> None:
    """Every operator has its function specifications, of each part one at a site at most; every site has an arena."""
    nodes, choices = program.plan.graph.nodes, program.plan.choices
    if program.repetition is not None:
        left_out = program.repetition.operations, program.repetition.head, len(program.repetition.copies)
        nodes, choices = keep(nodes, *left_out), keep(choices, *left_out)
    if not len(nodes) == len(choices) == len(program.operations):
        raise InternalError("not every operator has a choice and an operation")
    if len(program.memory) != program.plan.sites:
        raise InternalError(f"{len(program.memory)} arenas for {program.plan.sites} sites")
    for node, choice, operation in zip(nodes, choices, program.operations, strict=True):
        names = tuple(program.tensors[t].name for t in (*operation.inputs, *operation.outputs))
        if operation.name != node.name or (program.repetition is None and names != (*node.inputs, *node.outputs)):
            raise InternalError(f"{node.name}: its operation is {operation.name} of {', '.join(names)}")
        functions = [(function.inputs, function.outputs) for function in operation.functions]
        if functions != [(function.inputs, function.outputs) for function in choice.candidate.functions]:
            raise InternalError(f"{node.name}: the blocks of its functions are not those of its specification")
        sites = [function.site for function in operation.functions]
        crowded = max(map(sites.count, sites)) > operation.parts
        if crowded or not all(0 <= site < program.plan.sites for site in sites):
            raise InternalError(f"{node.name}: its functions run at sites {sites} of {program.plan.sites}")
