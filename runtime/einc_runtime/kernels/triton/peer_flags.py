"""Lets kernels of several devices wait for each other before they read each other's memory (`plan/peer_sums.py`).

The first program tells the others, and every program waits by itself, so that none has to wait for another one of its
launch. A flag is set with release and read with acquire semantics at the scope of the system: what earlier kernels of a
stream have written is seen by all that see its flag. The next kernel of the graph that uses the flags finds them at 0,
to which a copy sets them at the end of every execution (`execution/cuda/peer_flags.py`).
"""

from __future__ import annotations

from dataclasses import replace

from einc_runtime.kernels.gpu import LATE_PEERS, PeerFlags
from einc_runtime.kernels.triton.launches import KernelLaunch, KernelSource, LaunchSequence, StatusPointer

MAX_LOOKS = 1 << 22
"""Looks at a flag before a kernel gives up: some seconds, at about a microsecond for each. A GPU that another one waits
for is late by microseconds."""


def wait_for_peers(sequence: LaunchSequence, flags: PeerFlags | None) -> LaunchSequence:
    """The sequence with a first launch that begins by setting and awaiting flags; without them, as it is."""
    if flags is None:
        return sequence
    launch, *later = sequence.steps
    assert isinstance(launch, KernelLaunch), "sums are kernels of ours"
    arguments = (*launch.arguments, flags.awaited, StatusPointer(), *flags.peers)
    launch = replace(launch, source=_add_waits(launch.source, len(flags.peers)), arguments=arguments)
    return replace(sequence, steps=(launch, *later), status_message=LATE_PEERS)


def _add_waits(source: KernelSource, count: int) -> KernelSource:
    """The kernel with further pointers: to the flags that it awaits, its status word, and `count` flags of others."""
    peers = [f"peer{k}" for k in range(count)]
    lines = ["if tl.program_id(0) == 0:"]
    lines += [f'    tl.atomic_xchg({peer}, 1, sem="release", scope="sys")' for peer in peers]
    for k in range(count):
        look = f'tl.atomic_add(awaited + {k}, 0, sem="acquire", scope="sys")'
        lines += [f"seen = {look}", "looks = 0", f"while (seen == 0) & (looks < {MAX_LOOKS}):"]
        lines += [f"    seen = {look}", "    looks += 1", "if seen == 0:", "    tl.store(failed, 1)"]
    start = source.text.index(f"def {source.name}(")
    end = source.text.index("):\n", start)
    names = ", ".join(["awaited", "failed", *peers])
    body = "".join(f"    {line}\n" for line in lines)
    text = f"{source.text[:end]}, {names}):\n{body}{source.text[end + 3 :]}"
    types = (*source.types, *["i32"] * (count + 2))
    waiting = replace(source, text=text, types=types, aligned=(*source.aligned, *[False] * (count + 2)))
    return waiting.renamed(f"{source.name.rpartition('_')[0]}_of_peers")
