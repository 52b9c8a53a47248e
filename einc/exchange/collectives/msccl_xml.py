"""MSCCL's algorithms: an `algo` with a `gpu` per rank, their thread blocks `tb`, and the steps of these.

A block sends to one peer and receives from one at most, by the channel `chan`. The steps are `s` (send), `r` (receive),
`cpy` (copy), `re` (add the source to the destination), `nop` (wait only), and the fused `rcs`, `rrs`, `rrc` and `rrcs`:
receive, reduce with the local source, copy to the destination, send on. `depid` and `deps` name a block and a step to
wait for; a step that is waited for has `hasdep="1"`.
"""

from __future__ import annotations

from collections import defaultdict
from xml.sax.saxutils import quoteattr

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import (
    MAX_ALGORITHM_STEPS,
    MAX_ALGORITHM_TEXT,
    MAX_CHUNKS,
    MAX_RANKS,
    Channel,
    ChunkSlot,
    CollectiveAlgorithm,
    Step,
    check_slots,
    make_collective,
)
from einc.machines.xml_reader import Element, read_elements
from einc_runtime.text import escape_text

_PARENTS = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}
_RECEIVING = ("r", "rcs", "rrs", "rrc", "rrcs")
_SENDING = ("s", "rcs", "rrs", "rrcs")
_READING = ("s", "cpy", "re", "rrs", "rrc", "rrcs")
_WRITING = ("r", "cpy", "re", "rcs", "rrc", "rrcs")
INSTRUCTIONS = ("s", "r", "cpy", "re", "rcs", "rrs", "rrc", "rrcs", "nop")


class _XmlElement:
    """One element: its attributes and its line, for messages."""

    def __init__(self, name: str, attributes: dict[str, str], where: str) -> None:
        self.name, self.attributes, self.where = name, attributes, where
        self.children: list[_XmlElement] = []

    def get_text(self, name: str, default: str | None = None) -> str:
        value = self.attributes.get(name, default)
        if value is None:
            raise ProgramError(f"<{self.name}> has no attribute '{name}'", where=self.where)
        return value

    def get_number(self, name: str, default: int | None = None, least: int = 0, most: int = MAX_CHUNKS) -> int:
        text = self.get_text(name, None if default is None else str(default))
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 9) or not least <= int(text) <= most:
            message = f"<{self.name}> has {name}={escape_text(text, 40)!r}, not a number from {least} to {most:,}"
            raise ProgramError(message, where=self.where)
        return int(text)


def read_msccl_xml(text: str, file: str) -> CollectiveAlgorithm:
    """The algorithm in a text. Raises ProgramError, with its line, for anything that is none, and for any DTD."""
    root = _parse(text, file)
    count = root.get_number("ngpus", least=1, most=MAX_RANKS)
    chunks = root.get_number("nchunksperloop", least=1)
    inplace = root.get_number("inplace", 0, most=1) == 1
    roots = root.get_number("root", 0)
    collective = make_collective(root.get_text("coll"), count, chunks, inplace, root.where, roots)
    gpus: dict[int, _XmlElement] = {}
    for gpu in root.children:
        rank = gpu.get_number("id", most=count - 1)
        if rank in gpus:
            raise ProgramError(f"gpu {rank} stands twice", where=gpu.where)
        gpus[rank] = gpu
    missing = next((rank for rank in range(count) if rank not in gpus), None)
    if missing is not None:
        raise ProgramError(f"gpu {missing} of {count} is not there", where=root.where)
    for rank, gpu in gpus.items():
        for name, buffer in (("i_chunks", "i"), ("o_chunks", "o")):
            most = max(collective.count_chunks().values()) if inplace else collective.count_chunks()[buffer]
            if gpu.get_number(name, 0) > most:
                message = f"gpu {rank} has {name}={gpu.get_text(name)}, and {collective.kind} has {most}"
                raise ProgramError(message, where=gpu.where, hint="nchunksperloop says how many chunks there are")
    steps: list[Step] = []
    for rank in range(count):
        steps += _read_gpu(gpus[rank], rank, count)
    scratch = tuple(gpus[rank].get_number("s_chunks", 0) for rank in range(count))
    algorithm = CollectiveAlgorithm(root.get_text("name", ""), collective, scratch, tuple(steps), file)
    check_slots(algorithm)
    return algorithm


def _parse(text: str, file: str) -> _XmlElement:
    """The elements of a text, which are none but the four known ones."""
    if len(text) > MAX_ALGORITHM_TEXT:
        raise ProgramError(f"the text has more than {MAX_ALGORITHM_TEXT // 2**20} Mi characters", where=file)
    elements = read_elements(text, file, ProgramError)
    if sum(element.name == "step" for element in elements) > MAX_ALGORITHM_STEPS:
        raise ProgramError(f"the algorithm has more than {MAX_ALGORITHM_STEPS:,} steps", where=file)
    known: dict[Element, _XmlElement] = {}
    for element in elements:
        name, inside = element.name, element.path[-1] if element.path else None
        if name not in _PARENTS or _PARENTS[name] != (inside.name if inside else ""):
            stands = "at the top" if inside is None else f"inside of <{inside.name}>"
            message = f"<{escape_text(name, 40)}> is not known {stands}"
            hint = "an algorithm is <algo><gpu><tb><step/></tb></gpu></algo>"
            raise ProgramError(message, where=f"{file}:{element.position.row}", hint=hint)
        known[element] = _XmlElement(name, element.attributes, f"{file}:{element.position.row}")
        if inside is not None:
            known[inside].children.append(known[element])
    return known[elements[0]]


def _read_gpu(gpu: _XmlElement, rank: int, count: int) -> list[Step]:
    steps: list[Step] = []
    seen: set[int] = set()
    channels: dict[tuple[str, int, int], int] = {}
    for block in gpu.children:
        number = block.get_number("id")
        if number in seen:
            raise ProgramError(f"thread block {number} of gpu {rank} stands twice", where=block.where)
        seen.add(number)
        peers = {end: block.get_number(end, -1, least=-1, most=count - 1) for end in ("send", "recv")}
        channel = block.get_number("chan", 0, least=-1)
        for end, peer in peers.items():
            if peer == rank:
                raise ProgramError(f"gpu {rank} has itself as the peer of {end}", where=block.where)
            if peer >= 0 and channels.setdefault((end, peer, channel), number) != number:
                message = f"thread blocks {channels[end, peer, channel]} and {number} of gpu {rank} both have {end}="
                raise ProgramError(f"{message}{peer} and chan={channel}", where=block.where)
        sends: Channel = (rank, peers["send"], str(channel))
        receives: Channel = (peers["recv"], rank, str(channel))
        for position, element in enumerate(block.children):
            if element.get_number("s") != position:
                message = f"step {element.get_text('s')} stands where step {position} should"
                raise ProgramError(message, where=element.where)
            steps.append(_read_step(element, (rank, number, position), sends, receives))
    return steps


def _read_step(element: _XmlElement, step_position: tuple[int, int, int], sends: Channel, receives: Channel) -> Step:
    word = element.get_text("type")
    if word not in INSTRUCTIONS:
        raise ProgramError(
            f"the step type '{escape_text(word, 40)}' is not known",
            where=element.where,
            hint=f"known are {', '.join(INSTRUCTIONS)}",
        )
    rank = step_position[0]
    if word in _SENDING and sends[1] < 0:
        raise ProgramError(f"a step of type '{word}' in a thread block with send=-1", where=element.where)
    if word in _RECEIVING and receives[0] < 0:
        raise ProgramError(f"a step of type '{word}' in a thread block with recv=-1", where=element.where)
    source = _read_slot(element, "src", rank) if word in _READING else None
    target = _read_slot(element, "dst", rank) if word in _WRITING else None
    operands = tuple(slot for slot in (source, target if word == "re" else None) if slot is not None)
    block = element.get_number("depid", -1, least=-1)
    waits = () if block < 0 else ((block, element.get_number("deps")),)
    if block == step_position[1]:
        raise ProgramError("a step waits for a step of its own thread block", where=element.where)
    return Step(
        *step_position,
        word,
        count=0 if word == "nop" else element.get_number("cnt", 1, least=1),
        operands=operands,
        results=() if target is None else (target,),
        receives=receives if word in _RECEIVING else None,
        sends=sends if word in _SENDING else None,
        waits=waits,
        notifies=element.get_number("hasdep", 0, most=1) == 1,
        where=element.where,
    )


def _read_slot(element: _XmlElement, end: str, rank: int) -> ChunkSlot:
    buffer = element.get_text(f"{end}buf")
    if buffer not in ("i", "o", "s"):
        raise ProgramError(
            f"{end}buf is '{escape_text(buffer, 40)}'", where=element.where, hint="a buffer is i, o or s"
        )
    return ChunkSlot(rank, buffer, element.get_number(f"{end}off"))


def write_msccl_xml(algorithm: CollectiveAlgorithm) -> str:
    """The text of an algorithm whose steps are those of MSCCL; waits become `nop` steps where a step has several."""
    collective = algorithm.collective
    waited = {(step.rank, *wait) for step in algorithm.steps for wait in step.waits}
    blocks: dict[int, dict[int, list[Step]]] = {rank: defaultdict(list) for rank in range(collective.ranks)}
    for step in algorithm.steps:
        blocks[step.rank][step.block].append(step)
    ends = _match_ends(algorithm)
    sizes = collective.count_chunks()
    root = f" root={quoteattr(str(collective.root))}" if collective.kind == "broadcast" else ""
    lines = [
        f'<algo name={quoteattr(algorithm.name)} proto="Simple" nchannels="1" nchunksperloop="{collective.chunks}"'
        f' ngpus="{collective.ranks}" coll="{collective.kind}" inplace="{int(collective.inplace)}"'
        f' outofplace="{int(not collective.inplace)}" minBytes="0" maxBytes="0"{root}>'
    ]
    for rank in range(collective.ranks):
        lines.append(
            f'  <gpu id="{rank}" i_chunks="{sizes["i"]}" o_chunks="{sizes["o"]}" s_chunks="{algorithm.scratch[rank]}">'
        )
        renumbered = {number: _number_steps(steps) for number, steps in blocks[rank].items()}
        for number, steps in blocks[rank].items():
            send = next((step.sends[1] for step in steps if step.sends), -1)
            receive = next((step.receives[0] for step in steps if step.receives), -1)
            lines.append(f'    <tb id="{number}" send="{send}" recv="{receive}" chan="0">')
            for step in steps:
                lines += _format_step(step, renumbered, (rank, number, step.number) in waited, ends)
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _number_steps(steps: list[Step]) -> dict[int, int]:
    """The number of every step once the waits that need steps of their own have them."""
    numbers, following = {}, 0
    for step in steps:
        following += max(0, len(step.waits) - 1)
        numbers[step.number] = following
        following += 1
    return numbers


def _match_ends(algorithm: CollectiveAlgorithm) -> dict[tuple[int, int, int, str], ChunkSlot]:
    """For every step that sends, where its message is put, and for one that only receives, where it is from."""
    sent: dict[Channel, list[Step]] = defaultdict(list)
    received: dict[Channel, list[Step]] = defaultdict(list)
    for step in algorithm.steps:
        if step.sends is not None:
            sent[step.sends].append(step)
        if step.receives is not None:
            received[step.receives].append(step)
    ends = {}
    for channel, senders in sent.items():
        for sender, receiver in zip(senders, received[channel], strict=False):
            if receiver.results:
                ends[sender.rank, sender.block, sender.number, "dst"] = receiver.results[0]
            if sender.operands:
                ends[receiver.rank, receiver.block, receiver.number, "src"] = sender.operands[0]
    return ends


def _format_step(
    step: Step, renumbered: dict[int, dict[int, int]], waited: bool, ends: dict[tuple[int, int, int, str], ChunkSlot]
) -> list[str]:
    """The step, after a `nop` for each of its waits but the last."""
    step_number = renumbered[step.block][step.number]
    waits = [(block, renumbered[block][number]) for block, number in step.waits] or [(-1, -1)]
    first = step_number - (len(waits) - 1)
    lines = [
        f'      <step s="{first + k}" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"'
        f' depid="{block}" deps="{number}" hasdep="0"/>'
        for k, (block, number) in enumerate(waits[:-1])
    ]
    step_position = (step.rank, step.block, step.number)
    target = step.results[0] if step.results else ends.get((*step_position, "dst"))
    sources = [slot for slot in step.operands if slot != target or len(step.operands) == 1]
    source = sources[0] if sources else ends.get((*step_position, "src"))
    source, target = source or ChunkSlot(step.rank, "i", -1), target or ChunkSlot(step.rank, "o", -1)
    block, number = waits[-1]
    lines.append(
        f'      <step s="{step_number}" type="{step.word}" srcbuf="{source.buffer}" srcoff="{source.offset}"'
        f' dstbuf="{target.buffer}" dstoff="{target.offset}" cnt="{step.count}"'
        f' depid="{block}" deps="{number}" hasdep="{int(waited)}"/>'
    )
    return lines
