"""The Python API of the paper's Section 2, with all operators of the library and what Python programs need beside them.

It builds the same graphs as the model language. Names are camelCase because the paper's are; no other package follows
it. Dimensions are matched by position, as in numpy.

    import einc as es
    graph = es.createGraph()
    x = graph.insertTensor(es.tensorDesc([64, 64], "f32"))
    y = graph.matmul(x, x)
    graph.save(y)
    es.compileGraph(graph, machine="dgx-a100")
    graph.load(x, array)
    graph.execute()
    result = graph.offload(y)
"""

from einc.api.compiling import compileGraph, createGraph, grad, tensorDesc
from einc.api.graph import Graph
from einc.api.models import compile
from einc.api.plan import Plan
from einc.api.state_dict import readStateDict
from einc.api.tensor import Tensor

__all__ = [
    "Graph", "Plan", "Tensor", "compile", "compileGraph", "createGraph", "grad", "readStateDict", "tensorDesc",
]  # fmt: skip
