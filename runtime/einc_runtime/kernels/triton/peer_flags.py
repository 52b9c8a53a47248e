"""Lets kernels of several devices wait for each other before they read each other's memory (`plan/peer_sums.py`).

The first program tells the others, and every program waits by itself, so that none has to wait for another one of its
launch. A flag is set with release and read with acquire semantics at the scope of the system: what earlier kernels of a
stream have written is seen by all that see its flag. A kernel that is gathering counts its programs that have written;
the last one tells the others, and waits for them, so that at any time one program of a launch at most waits for what
other programs do. The next kernel of the graph that uses the flags finds them at 0,
to which a copy sets them at the end of every execution (`execution/cuda/peer_flags.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from einc_runtime.kernels.gpu import LATE_PEERS, PeerFlags
from einc_runtime.kernels.triton.launches import KernelLaunch, KernelSource, LaunchSequence, StatusPointer

MAX_LOOKS = 1 << 22
"""Looks at a flag before a kernel gives up: some seconds, at about a microsecond for each. A GPU that another one waits
for is late by microseconds."""


def wait_for_peers(sequence: LaunchSequence, flags: PeerFlags | None) -> LaunchSequence:
    """The sequence with a first launch that begins by setting and awaiting flags, and ends so if it is gathering.
    Without flags it is as it was."""
    if flags is None:
        return sequence
    launch, *later = sequence.steps
    assert isinstance(launch, KernelLaunch), "sums are kernels of ours"
    assert not (later and flags.is_gathering), "what is gathered is made by one launch"
    arguments = (*launch.arguments, flags.awaited, StatusPointer(), *flags.peers)
    source = _add_waits(launch.source, len(flags.peers), is_gathering=flags.is_gathering)
    launch = replace(launch, source=source, arguments=arguments)
    return replace(sequence, steps=(launch, *later), status_message=LATE_PEERS)


def _add_waits(source: KernelSource, count: int, *, is_gathering: bool) -> KernelSource:
    """The kernel with further pointers: to the flags that it awaits, its status word, and `count` flags of others."""
    peers = [f"peer{k}" for k in range(count)]
    lines = ["if tl.program_id(0) == 0:", *(f"    {_tell(peer)}" for peer in peers), *_await(range(count), "begun")]
    last = [
        "tl.debug_barrier()",  # all threads of the program have written
        f'written = tl.atomic_add(awaited + {2 * count}, 1, sem="acq_rel", scope="gpu")',
        "if written == tl.num_programs(0) - 1:",
        *(f"    {_tell(f'{peer} + {count}')}" for peer in peers),
        *(f"    {line}" for line in _await(range(count, 2 * count), "ended")),
    ]
    start = source.text.index(f"def {source.name}(")
    end = source.text.index("):\n", start)
    names = ", ".join(["awaited", "failed", *peers])
    body = "".join(f"    {line}\n" for line in lines)
    text = f"{source.text[:end]}, {names}):\n{body}{source.text[end + 3 :]}"
    text += "".join(f"    {line}\n" for line in last) if is_gathering else ""
    types = (*source.types, *["i32"] * (count + 2))
    waiting = replace(source, text=text, types=types, aligned=(*source.aligned, *[False] * (count + 2)))
    return waiting.renamed(f"{source.name.rpartition('_')[0]}_of_peers")


def _tell(flag: str) -> str:
    """The line that sets a flag at another device."""
    return f'tl.atomic_xchg({flag}, 1, sem="release", scope="sys")'


def _await(flags: range, name: str) -> Iterator[str]:
    """Lines that wait for flags, by their numbers, in variables that begin with a name."""
    for k in flags:
        look = f'tl.atomic_add(awaited + {k}, 0, sem="acquire", scope="sys")'
        yield f"{name} = {look}"
        yield f"{name}_looks = 0"
        yield f"while ({name} == 0) & ({name}_looks < {MAX_LOOKS}):"
        yield f"    {name} = {look}"
        yield f"    {name}_looks += 1"
        yield f"if {name} == 0:"
        yield "    tl.store(failed, 1)"
