"""Network namespaces at one switch: what ranks over MPI talk through, with a limit on each of their ports.

Every namespace has one address, and its port to the switch carries at most so much in each direction. A port serves the
others in turn (HTB classes by the address at the other end), short packets first, which are acknowledgements alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .network import _PATIENT, PREFIX, _alone, _remove, _run, _set, _tc, require_support

SWITCH = f"{PREFIX}s"
"""The namespace of the switch, in which MPI's launcher runs."""

_ADDRESS = "10.99.0.{}"
_HOME = _ADDRESS.format(254)
_MTU = 1500
"""Ports take turns by packets. At 8 Mbit/s, one of 9000 bytes holds up the others for 9 ms, which is as long as many of
the messages take that the plans send; the predicted time knows no packets."""

_FRAME = _MTU + 14
_BURST = 2 * _FRAME
"""What may leave at once after a pause: while one packet leaves, the timer for the next one may be late. More would
make up for pauses of ranks that wait for each other."""

_SHORT = 64
"""Bytes of a packet below which it goes first; a power of two."""

_NOTHING_IS_LOST = ("net.ipv4.tcp_recovery=0", "net.ipv4.tcp_early_retrans=0", "net.ipv4.tcp_reordering=300")
"""A packet that short ones have overtaken, or that waits for its turn, is not to be sent again, as TCP would do within
milliseconds (RACK, tail loss probes, three acknowledgements of one packet)."""


@dataclass(frozen=True, slots=True)
class Star:
    """A star that has been built: its namespaces, and the program that MPI's launcher starts processes there with."""

    names: tuple[str, ...]
    launcher: Path

    def mpiexec(self, program: str, ranks: int, cores: Sequence[int] | None = None) -> list[str]:
        """The beginning of a command for so many ranks in each namespace; those of the n-th use core n of these, from
        the first again where there are fewer."""
        chosen = ",".join(map(str, sorted(os.sched_getaffinity(0)) if cores is None else cores))
        hosts = ",".join(f"{name}:{ranks}" for name in self.names)
        launch = ["-launcher", "ssh", "-launcher-exec", str(self.launcher), "-localhost", _HOME]
        count = str(ranks * len(self.names))
        # Between namespaces, bytes are to cross the ports, and not memory, which all have in common.
        return [
            "ip", "netns", "exec", SWITCH, "env", *_UCX, f"STAR_CORES={chosen}",
            program, *launch, "-hosts", hosts, "-n", count,
        ]  # fmt: skip


_UCX = ("UCX_TLS=tcp,self", "UCX_NET_DEVICES=nic", "UCX_TCP_SNDBUF=128k", "UCX_TCP_RCVBUF=2m", "UCX_RNDV_THRESH=inf")
"""No second of queues. Data leave when they are there: where a receiver first has to say that it is ready, as with
UCX's rendezvous, it says so behind its own data, and each direction of a port waits for the other one."""

_LAUNCHER = """#!{python}
import os, sys

words = [word for word in sys.argv[1:] if word != "-x"]
cores = [int(core) for core in os.environ["STAR_CORES"].split(",")]
os.sched_setaffinity(0, [cores[int(words[0].removeprefix("{prefix}")) % len(cores)]])
os.setpriority(os.PRIO_PROCESS, 0, -10)  # these processes sleep most of the time, and are to wake up at once
os.execvp("ip", ["ip", "netns", "exec", words[0], "sh", "-c", " ".join(words[1:])])
"""


@contextlib.contextmanager
def star(count: int, mbits: float | None = None) -> Iterator[Star]:
    """So many namespaces at a switch, with ports of so many Mbit/s in each direction, or without limits; gone when the
    context ends, however it does. Raises Unsupported where this computer cannot have it."""
    require_support()
    with _alone(), tempfile.TemporaryDirectory(prefix="einc-star-") as folder:
        _remove()
        try:
            launcher = Path(folder, "launcher")
            launcher.write_text(_LAUNCHER.format(python=sys.executable, prefix=PREFIX))
            launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
            yield Star(_build(count, mbits), launcher)
        finally:
            _remove()


def _build(count: int, mbits: float | None) -> tuple[str, ...]:
    names = tuple(f"{PREFIX}{number}" for number in range(count))
    for name in (SWITCH, *names):
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", SWITCH, "link", "add", "switch", "mtu", str(_MTU), "type", "bridge")
    _run("ip", "-n", SWITCH, "address", "add", f"{_HOME}/24", "dev", "switch")
    _run("ip", "-n", SWITCH, "link", "set", "switch", "up")
    for number, name in enumerate(names):
        peer = ["type", "veth", "peer", "name", f"port{number}", "mtu", str(_MTU), "netns", SWITCH]
        _run("ip", "link", "add", "nic", "mtu", str(_MTU), "txqueuelen", "1000", "netns", name, *peer)
        _run("ip", "-n", name, "address", "add", f"{_ADDRESS.format(number + 1)}/24", "dev", "nic")
        _run("ip", "-n", SWITCH, "link", "set", f"port{number}", "master", "switch")
        for space, device in ((name, "nic"), (SWITCH, f"port{number}")):
            _run("ip", "-n", space, "link", "set", device, "gso_max_segs", "1", "up")
        route = (f"{_ADDRESS.format(0)}/24", "dev", "nic", "src", _ADDRESS.format(number + 1))
        _run("ip", "-n", name, "route", "replace", *route, *_PATIENT)
        _set(name, "net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_no_metrics_save=1", *_NOTHING_IS_LOST)
        if mbits is not None:
            _limit(name, "nic", mbits, count, at=16)
            _limit(SWITCH, f"port{number}", mbits, count, at=12)
    return names


def _limit(name: str, device: str, mbits: float, count: int, *, at: int) -> None:
    """Limit what leaves a device; `at` is where a packet has the address whose packets share a turn."""
    rate = f"{mbits * 1e6:.0f}bit"
    borrowing = f"htb rate 8kbit ceil {rate} burst {_BURST} cburst {_BURST} quantum {_FRAME}"
    short = f"u32 match u16 0 0x{0xFFFF & -_SHORT:04x} at 2"
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate} burst {_BURST} cburst {_BURST}",
        f"class add dev {device} parent 1:1 classid 1:2 {borrowing} prio 0",
        f"filter add dev {device} parent 1: protocol ip prio 1 {short} flowid 1:2",
    ]
    for peer in range(count):
        lane = f"1:{0x10 + peer:x}"
        lines.append(f"class add dev {device} parent 1:1 classid {lane} {borrowing} prio 1")
        whose = f"u32 match ip {'dst' if at == 16 else 'src'} {_ADDRESS.format(peer + 1)}/32"
        lines.append(f"filter add dev {device} parent 1: protocol ip prio 2 {whose} flowid {lane}")
    _tc(name, *lines)
