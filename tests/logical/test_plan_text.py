"""The text of a logical plan."""

from __future__ import annotations

from einc.logical.optimize import optimize
from einc.logical.plan import dump_plan
from tests.support.logical_toys import Builder, toy

EXPECTED = """\
logical plan toy: 2 operators over 7 sites (eindecomp, exact)
cost 622 elements; cut heuristic 622

h = ij jk -> ik(x, w)
  i in 7: 0 2 5 7 10 12 15 18
  j in 1: 0 10
  k in 1: 0 4
  cost 460 = repartition 0 + join 460 + aggregation 0

y, y_1 = ij -> ij i(h)
  i in 3: 0 3 9 18
  j in 2: 0 2 4
  1 site idle
  cost 162 = repartition 72 + join 72 + aggregation 18
"""


def test_dump():
    builder = Builder()
    x, w = builder.input("x", 18, 10), builder.input("w", 10, 4)
    (h,) = builder.apply(toy("ij jk -> ik", i=18, j=10, k=4), x, w, name="h")
    outputs = builder.apply(toy("ij -> ij i", {"i": (3, 9), "j": (2,)}, i=18, j=4), h, name="y")
    text = dump_plan(optimize(builder.graph(*outputs), 7))
    assert text == EXPECTED
