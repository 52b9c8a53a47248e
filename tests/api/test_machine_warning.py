"""What had to be assumed of the machine is one warning in Python."""

import warnings

import pytest

import einc as es
from einc.errors import MachineWarning
from einc.machines import detect
from einc.machines.catalogue import load_catalogue
from einc.machines.visible.cuda_driver import ask_driver
from einc.machines.visible.topologies import VisibleSources
from tests.support.stand_in_driver import make_driver


@pytest.fixture
def geforce(monkeypatch):
    cuda, _ = make_driver(load_catalogue()["rtx-4090"], None, 2)
    monkeypatch.setattr(detect, "ask_driver", lambda: ask_driver(cuda))
    monkeypatch.setattr(detect, "ask_everything", lambda driver, dump: VisibleSources())


def make_graph():
    graph = es.createGraph()
    x, w = (graph.insertTensor(es.tensorDesc(shape, "f32")) for shape in ([48, 32], [32, 20]))
    graph.save(graph.matmul(x, w))
    return graph


def test_a_plan_for_the_visible_gpus_warns_once(geforce):
    with pytest.warns(MachineWarning, match="assumed of rtx-4090-x2: .*host memory: 31.51 GB/s") as caught:
        es.compileGraph(make_graph())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        es.compileGraph(make_graph(), machine="dgx-h100")
