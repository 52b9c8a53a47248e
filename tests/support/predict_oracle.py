"""The rules of predicted timelines once more, with exact fractions and nothing clever: everything is worked out anew at
every event, and nothing of the code that is tested is used but the data classes, and the times of kernels on GPUs that
were measured, which have tests of their own."""

from fractions import Fraction

from einc.predict.costs import TaskKind, compute_occupied_ms


def oracle(works, machine):
    """Starts and ends in milliseconds, as floats."""
    count = len(works)
    starts, ends = [None] * count, [None] * count
    hbm = [Fraction(site.sustained_gbs) * 10**6 for site in machine.sites]
    capacity = [Fraction(resource.gbs) * 10**6 for resource in machine.resources]
    crossed = {
        p: [r for r, resource in enumerate(machine.resources) if (work.site, work.target) in resource.pairs]
        for p, work in enumerate(works)
        if work.kind is TaskKind.TRANSFER
    }
    kernel, transfer = (Fraction(us) / 1000 for us in (machine.kernel_latency_us, machine.transfer_latency_us))
    running, delayed, left = {}, {}, {}  # by task: end; end of latency; bytes
    now = Fraction(0)

    def length(work):
        site = machine.sites[work.site]
        if site.gpu is not None and work.kind is TaskKind.KERNEL:
            return Fraction(compute_occupied_ms(work, site, machine.kernel_latency_us))
        computing = Fraction(0)
        peaks = dict(machine.sites[work.site].flops)
        peak = peaks.get(work.precision, peaks.get("f32"))
        if peak is not None:
            computing = Fraction(work.flops) * 1000 / Fraction(peak)
        return kernel + max(computing, work.size / hbm[work.site])

    def begin():
        changed = True
        while changed:
            changed = False
            for p, work in enumerate(works):
                if starts[p] is not None or any(ends[b] is None for b in work.after):
                    continue
                if work.kind is TaskKind.FENCE:
                    starts[p] = ends[p] = now
                    changed = True
                elif work.kind is TaskKind.TRANSFER:
                    starts[p] = now
                    if transfer:
                        delayed[p] = now + transfer
                    else:
                        left[p] = Fraction(work.size)
                    changed = True
        for p, work in enumerate(works):
            if (
                starts[p] is None
                and work.kind in (TaskKind.KERNEL, TaskKind.COMBINE)
                and all(ends[b] is not None for b in work.after)
                and not any(works[q].site == work.site for q in running)
            ):
                starts[p] = now
                running[p] = now + length(work)

    def rates():
        rising, fixed = set(left), {}
        while rising:
            share = {}
            for r, full in enumerate(capacity):
                mine = [p for p in rising if r in crossed[p]]
                if mine:
                    taken = sum(rate for p, rate in fixed.items() if r in crossed[p])
                    share[r] = (full - taken) / len(mine)
            tightest = min(share.values())
            full = {r for r, value in share.items() if value == tightest}
            stopped = {p for p in rising if full & set(crossed[p])}
            fixed.update(dict.fromkeys(stopped, tightest))
            rising -= stopped
        return fixed

    begin()
    while running or delayed or left:
        speed = rates()
        moments = [*running.values(), *delayed.values(), *(now + left[p] / speed[p] for p in left)]
        step = min(moments) - now
        now += step
        for p in left:
            left[p] -= step * speed[p]
        for p in [p for p, remaining in left.items() if remaining <= 0]:
            del left[p]
            ends[p] = now
        for p in [p for p, end in running.items() if end <= now]:
            del running[p]
            ends[p] = now
        for p in [p for p, end in delayed.items() if end <= now]:
            del delayed[p]
            left[p] = Fraction(works[p].size)
        begin()
    assert None not in ends
    return [float(start) for start in starts], [float(end) for end in ends]
