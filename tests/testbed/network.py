"""Network namespaces joined by links of given rates: builds and removes the network that a machine file describes.

A resource of one pair of sites is a veth link whose sending end is limited; one of several pairs is a namespace that
routes, with all that enters it going through one limited ifb device. A limited device serves its flows in turn
(HTB classes by the source port of data), as in the max-min fair rates of the simulator; acknowledgements go first.

Everything is created inside namespaces whose names begin with PREFIX; nothing of the host is changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from einc.machines.model import Machine

PREFIX = "eincbed"
PORT = 5000
"""The port on which sites listen; packets from this port are acknowledgements."""

_FIRST_PORT, _PORTS = 20_000, 20_000
_MTU = 9000
_FRAME = _MTU + 14
_PATIENT = ("rto_min", "5s")
"""A packet may wait for a second in the queue of a path that two dozen flows share, and none is ever dropped: what TCP
would send again before that would only take the place of other data."""

_LANES = 32
"""So many flows of one resource are told apart; with more, some share a turn."""


class Unsupported(Exception):
    """The testbed cannot run on this computer; the text says why."""


@dataclass(slots=True)
class Network:
    """A testbed that has been built: a namespace per site, and the address for each pair of sites.

    `resource` is the position of what a pair crosses, `router` that of the routing namespace, where it is a shared one.
    """

    sites: int
    resource: dict[tuple[int, int], int]
    router: dict[int, int]
    counters: dict[int, Iterator[int]] = field(default_factory=dict)

    def prefixes(self) -> list[list[str]]:
        """The commands that start the processes of the sites."""
        return [["ip", "netns", "exec", _site(number)] for number in range(self.sites)]

    def address(self, source: int, destination: int) -> tuple[str, int, int]:
        """The address and port of a site for another, and a port of the flow's own: consecutive ones are told apart."""
        position = self.resource[source, destination]
        number = next(self.counters.setdefault(position, itertools.count()))
        router = self.router.get(position)
        where = _direct(destination, source) if router is None else _routed(router, destination)
        return where, PORT, _FIRST_PORT + number % _PORTS


def require_support() -> None:
    """Raise Unsupported where there is no use in trying."""
    if not sys.platform.startswith("linux"):
        raise Unsupported("network namespaces need Linux")
    if os.geteuid() != 0:
        raise Unsupported("network namespaces need root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise Unsupported(f"the command {tool} is not there (it is part of iproute2)")


@contextlib.contextmanager
def network(machine: Machine, mbits: float = 1.0) -> Iterator[Network]:
    """The machine's links at `mbits` Mbit/s for every GB/s of the machine; gone when the context ends, however it does.

    Raises Unsupported where a pair crosses several resources, where this kernel lacks something, or where there is a
    testbed already.
    """
    require_support()
    resource: dict[tuple[int, int], int] = {}
    for pair, crossed in machine.routes.items():
        if len(crossed) != 1:
            raise Unsupported(f"{machine.name}: sites {pair[0]} and {pair[1]} are joined by more than one resource")
        resource[pair] = crossed[0]
    shared = [position for position, one in enumerate(machine.resources) if len(one.pairs) > 1]
    if len(machine.sites) > 200 or len(shared) > 200:
        raise Unsupported(f"{machine.name} is too large")
    with _alone():
        _remove()
        try:
            _build(machine, mbits, shared)
            yield Network(len(machine.sites), resource, {position: k for k, position in enumerate(shared)})
        finally:
            _remove()


def _build(machine: Machine, mbits: float, shared: list[int]) -> None:
    sites = range(len(machine.sites))
    for name in [*map(_site, sites), *map(_router, range(len(shared)))]:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _set(name, "net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_no_metrics_save=1", "net.ipv4.ip_forward=1")
    rates = {one.pairs[0]: one.gbs * mbits for one in machine.resources if len(one.pairs) == 1}
    for a, b in itertools.combinations(sites, 2):
        if (a, b) in rates or (b, a) in rates:
            _join(_site(a), f"to{b}", _direct(a, b), _site(b), f"to{a}", _direct(b, a))
            for one, other in ((a, b), (b, a)):
                if (one, other) in rates:
                    _limit(_site(one), f"to{other}", rates[one, other])
    for number, position in enumerate(shared):
        router, one = _router(number), machine.resources[position]
        _run("ip", "-n", router, "link", "add", "shared", "mtu", str(_MTU), "txqueuelen", "1000", "type", "ifb")
        _run("ip", "-n", router, "link", "set", "shared", "up")
        _limit(router, "shared", one.gbs * mbits)
        for site in sorted({site for pair in one.pairs for site in pair}):
            here, there = _routed(number, site), _gateway(number, site)
            _join(_site(site), f"up{number}", here, router, f"s{site}", there)
            _run("ip", "-n", _site(site), "route", "add", f"10.{number + 1}.0.0/24", "via", there, *_PATIENT)
            redirect = f"filter add dev s{site} parent ffff: protocol ip u32 match u32 0 0"
            _tc(router, f"qdisc add dev s{site} ingress", f"{redirect} action mirred egress redirect dev shared")


def _join(one: str, device: str, address: str, other: str, other_device: str, other_address: str) -> None:
    peer = ["type", "veth", "peer", "name", other_device, "mtu", str(_MTU), "netns", other]
    _run("ip", "link", "add", device, "mtu", str(_MTU), "netns", one, *peer)
    for name, end, own, far in (
        (one, device, address, other_address),
        (other, other_device, other_address, address),
    ):
        _run("ip", "-n", name, "address", "add", f"{own}/32", "peer", far, "dev", end)
        _run("ip", "-n", name, "link", "set", end, "gso_max_segs", "1", "up")
        _run("ip", "-n", name, "route", "replace", far, "dev", end, "src", own, *_PATIENT)


def _limit(name: str, device: str, mbits: float) -> None:
    """Limit what leaves a device, flows in turn: each lane may have next to nothing of its own and borrows the rest."""
    rate = f"{mbits * 1e6:.0f}bit"
    borrowing = f"htb rate 8kbit ceil {rate} burst {_FRAME} cburst {_FRAME} quantum {_FRAME}"
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate} burst {_FRAME} cburst {_FRAME}",
        f"class add dev {device} parent 1:1 classid 1:2 {borrowing} prio 0",
        f"filter add dev {device} parent 1: protocol ip prio 1 handle 2: u32 divisor {_LANES}",
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 ht 800:: match ip sport {PORT} 0xffff flowid 1:2",
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 ht 800:: match u8 0 0"
        f" hashkey mask 0x{_LANES - 1:04x}0000 at 20 link 2:",
    ]
    for lane in range(_LANES):
        number = f"1:{0x10 + lane:x}"
        lines.append(f"class add dev {device} parent 1:1 classid {number} {borrowing} prio 1")
        lines.append(
            f"filter add dev {device} parent 1: protocol ip prio 1 u32 ht 2:{lane:x}: match u8 0 0 flowid {number}"
        )
    _tc(name, *lines)


def _direct(site: int, to: int) -> str:
    """The address of a site on its own link to another."""
    return f"10.0.{site}.{to + 1}"


def _routed(router: int, site: int) -> str:
    """The address of a site for those who come through a routing namespace."""
    return f"10.{router + 1}.0.{site + 1}"


def _gateway(router: int, site: int) -> str:
    """The address of a routing namespace for a site."""
    return f"10.{router + 1}.1.{site + 1}"


def _site(number: int) -> str:
    return f"{PREFIX}{number}"


def _router(number: int) -> str:
    return f"{PREFIX}r{number}"


def _set(name: str, *settings: str) -> None:
    _run("ip", "netns", "exec", name, "sysctl", "-q", "-w", *settings)


def _tc(name: str, *lines: str) -> None:
    _run("tc", "-n", name, "-batch", "-", text="\n".join(lines) + "\n")


def _run(*command: str, text: str | None = None) -> str:
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[0]
        raise Unsupported(f"`{' '.join(command)}` failed: {reason}")
    return result.stdout


def _remove() -> None:
    """Delete our namespaces, and with them all devices in them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name = line.split()[0]
        if name.startswith(PREFIX):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One testbed at a time: their namespaces have the same names."""
    path = Path(tempfile.gettempdir()) / f"{PREFIX}.lock"
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unsupported("another testbed is running") from None
        yield
