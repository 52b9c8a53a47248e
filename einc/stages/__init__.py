"""Plans with pipeline stages, micro-batches and replicas (`einc.logical.division`).

A *shape* says how many there are of each. `batch` finds out how a graph is cut into parts of its batch, and `cutting`
where its operators are cut into stages. `planning` has the ordinary search plan a part of each stage on the sites of
that stage, and puts the plan of the whole together. `choice` compares shapes.
"""
