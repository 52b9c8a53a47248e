"""Small machines and random task graphs for the tests of predicted timelines."""

from hypothesis import strategies as st

from einc.machines.model import Machine, Resource, Site
from einc.predict.costs import TaskCost, TaskKind


def pair(gbs=10, hbm=100, transfer=0.0, kernel=0.0, flops=(("f32", 1e12), ("f16", 4e12))):
    """Two sites with a link each way; a GB takes 100 ms on a link of 10 GB/s."""
    links = (Resource("0>1", gbs, ((0, 1),)), Resource("1>0", gbs, ((1, 0),)))
    return Machine("pair", (Site(hbm, 2**40, flops),) * 2, links, transfer, kernel)


def switch(sites, gbs=10, hbm=100, transfer=0.0, kernel=0.0):
    out = [Resource(f"out {s}", gbs, tuple((s, t) for t in range(sites) if t != s)) for s in range(sites)]
    into = [Resource(f"in {s}", gbs, tuple((t, s) for t in range(sites) if t != s)) for s in range(sites)]
    return Machine("switch", (Site(hbm, 2**40, (("f32", 1e12),)),) * sites, (*out, *into), transfer, kernel)


@st.composite
def machines(draw):
    """Any sharing of a few resources among the pairs of 2 to 4 sites; every pair has one of its own at least."""
    count = draw(st.integers(2, 4))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    rate = st.sampled_from([1, 2, 2.5, 4, 8])
    links = [Resource(f"{a}>{b}", draw(rate), ((a, b),)) for a, b in pairs]
    shared = [
        Resource(f"shared {k}", draw(rate), tuple(sorted(draw(st.sets(st.sampled_from(pairs), min_size=1)))))
        for k in range(draw(st.integers(0, 3)))
    ]
    flops = draw(st.sampled_from([(), (("f32", 1e9),), (("f16", 4e9), ("f32", 1e9))]))
    sites = tuple(Site(draw(rate), 2**40, flops) for _ in range(count))
    latencies = draw(st.sampled_from([(0.0, 0.0), (4.0, 2.0), (0.0, 300.0), (250.0, 0.0)]))
    return Machine("random", sites, (*links, *shared), *latencies)


@st.composite
def graphs(draw, sites, most=24):
    """Tasks of all kinds in an order in which they can run."""
    works = []
    for position in range(draw(st.integers(1, most))):
        earlier = st.sets(st.integers(0, position - 1), max_size=3) if position else st.just(set())
        after = tuple(sorted(draw(earlier)))
        kind = draw(
            st.sampled_from([TaskKind.KERNEL, TaskKind.TRANSFER, TaskKind.TRANSFER, TaskKind.COMBINE, TaskKind.FENCE])
        )
        site = draw(st.integers(0, sites - 1))
        size = draw(st.integers(1, 9)) * 10**6
        if kind is TaskKind.TRANSFER:
            target = draw(st.sampled_from([t for t in range(sites) if t != site]))
            works.append(TaskCost(kind, site, after, size, target=target))
        elif kind is TaskKind.FENCE:
            works.append(TaskCost(kind, site, after))
        else:
            flops = draw(st.sampled_from([0, 10**6, 7 * 10**6])) if kind is TaskKind.KERNEL else 0
            works.append(TaskCost(kind, site, after, size, flops, draw(st.sampled_from(["f16", "f32", "f64"]))))
    return tuple(works)
