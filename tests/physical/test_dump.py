"""The text of a device program, to the letter."""

from __future__ import annotations

from einc.physical.build import build
from einc.physical.program import dump
from tests.support.physical_toys import Formula, graph_of, plan_of, switch

EXPECTED = """\
device program toy: 3 sites

memory
  site 0: 704 bytes
  site 1: 576 bytes
  site 2: 0 bytes

buffers
  b0 = i64 a[0:4, 0:3] at site 0 + 0, input
  b1 = i64 b[0:3, 0:3] at site 0 + 128, weight
  b2 = i64 c[0:4, 0:3] at site 0 + 448, scratch
  b3 = i64 a[0:4, 3:6] at site 1 + 0, input
  b4 = i64 b[3:6, 0:3] at site 1 + 128, weight
  b5 = i64 c[0:4, 0:3] at site 1 + 320, scratch
  b6 = i64 c[0:2, 0:3] at site 0 + 640, scratch
  b7 = i64 c[2:4, 0:3] at site 1 + 512, scratch
  b8 = i64 c[0:2, 0:3] at site 0 + 576, scratch
  b9 = i64 c[2:4, 0:3] at site 1 + 448, scratch
  b10 = i64 y[0:2, 0:3] at site 0 + 256, result
  b11 = i64 y[2:4, 0:3] at site 1 + 256, result
  b12 = i64 c[0:4, 0:3] at site 0 + 320, result

operator c (ij jk -> ik) on sites 0, 1
  t0 = kernel 0 at 0: b0[0:4, 0:3], b1[0:3, 0:3] -> b2[0:4, 0:3]
  t1 = kernel 1 at 1: b3[0:4, 3:6], b4[3:6, 0:3] -> b5[0:4, 0:3]

operator y (ik -> ik) on sites 0, 1
  exchange (naive)
    GPUS: 0, 1, 2
    PARTITIONS: S1 {0} S2 {1}
    IN:  X1 @ 0 (size: 48 B);
         X2 @ 0 (size: 48 B);
         Y1 @ 1 (size: 48 B);
         Y2 @ 1 (size: 48 B)
    OUT: X1+Y1 @ S1;
         X2+Y2 @ S2

    Y1 @ 1 -> 0
    X2 @ 0 -> 1
    X1+Y1 @ 0
    X2+Y2 @ 1
  t2 = transfer at 1: b5[0:2, 0:3] -> b8[0:2, 0:3] after t1
  t3 = transfer at 0: b2[2:4, 0:3] -> b9[2:4, 0:3] after t0
  t4 = aggregate sum at 0: b2[0:2, 0:3], b8[0:2, 0:3] -> b6[0:2, 0:3] after t0, t2
  t5 = aggregate sum at 1: b9[2:4, 0:3], b5[2:4, 0:3] -> b7[2:4, 0:3] after t1, t3
  t6 = kernel 0 at 0: b6[0:2, 0:3] -> b10[0:2, 0:3] after t4
  t7 = kernel 1 at 1: b7[2:4, 0:3] -> b11[2:4, 0:3] after t5

output c = b12[0:4, 0:3]
  exchange (naive)
    GPUS: 0, 1, 2
    PARTITIONS: S1 {0}
    IN:  X1 @ 0 (size: 48 B);
         Y1 @ 1 (size: 48 B);
         X1+Y1 @ 1 (size: 48 B)
    OUT: X1+Y1 @ S1

    X1+Y1 @ 1 -> 0
  t8 = transfer at 1: b7[2:4, 0:3] -> b12[2:4, 0:3] after t5
  t9 = copy at 0: b6[0:2, 0:3] -> b12[0:2, 0:3] after t4

output y = b10[0:2, 0:3], b11[2:4, 0:3]
"""


def test_dump() -> None:
    product = Formula(("ij", "jk"), (("ik", "sum"),), (("i", 4), ("j", 6), ("k", 3)))
    rows = Formula(("ik",), (("ik", "sum"),), (("i", 4), ("k", 3)))
    graph = graph_of([("c", product, ("a", "b")), ("y", rows, ("c",))], ["c", "y"], weights=["b"])
    assert dump(build(plan_of(graph, 3, {"c": (1, 2, 1), "y": (2, 1)}), switch(3))) == EXPECTED
