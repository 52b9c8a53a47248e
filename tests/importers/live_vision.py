"""Vision models of timm and torchvision with random weights: imported, they compute on one and on three sites the same.

`data/torch_vision.json` has the result of each; `-m slow` tries all that are equal. `python -m
tests.importers.live_vision` tries models, or all, and writes down what became of them. `make test-vision` unpacks both
packages into build/vision, so that torchvision, which may not fit torch's build, is not in the way of transformers.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from einc.compiler import compile_model
from einc.importers.pytorch.importing import from_torch
from einc.options import CompileOptions
from einc.plan_report import read_report
from einc_runtime.cli.main import GARBAGE_THRESHOLD
from tests.support.tiny_models import randomize
from tests.support.torch_models import compare
from tests.support.trials import Check, Table, fill_table, list_equal

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "data" / "torch_vision.json"
MODELS: Table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
TOLERANCE = 1e-4
"""Relative to the largest score: networks of a hundred layers, whose sums are added up in another order."""
CLASSES = 11
MAX_SECONDS = 300
"""Of one core for a model: its results on one and on three sites, and a plan for eight GPUs."""
BATCH = 8
"""Images of a run that is planned for eight GPUs."""
SIZE, SMALL = (64, 96), (64, 64)
"""Height and width, which differ; some models take squares alone."""
FIXED = {"efficientformer_l1": (224, 224), "inception_v3": (224, 224)}
SQUARE = ("nest_tiny",)

OF_TIMM = (
    "resnet18", "resnet10t", "resnext26ts", "eca_resnext26ts", "skresnet18", "legacy_seresnet18", "res2net50d",
    "resnest14d", "convnext_atto", "convnextv2_atto", "convnext_zepto_rms", "efficientnet_lite0",
    "tf_efficientnet_b0", "efficientnetv2_rw_t", "mobilenetv2_050", "mobilenetv3_small_050",
    "mobilenetv4_conv_small_050", "mnasnet_small", "fbnetc_100", "spnasnet_100", "lcnet_035", "tinynet_e",
    "ghostnet_050", "ghostnetv2_100", "hardcorenas_a", "rexnet_100", "vit_tiny_patch16_224",
    "deit_tiny_patch16_224", "deit3_small_patch16_224", "cait_xxs24_224", "xcit_nano_12_p16_224",
    "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_224", "pit_ti_224", "levit_128s", "mobilevit_xxs",
    "mobilevitv2_050", "poolformer_s12", "poolformerv2_s12", "caformer_s18", "convformer_s18", "mixer_s32_224",
    "gmlp_ti16_224", "resmlp_12_224", "regnetx_002", "regnety_002", "cs3darknet_s", "dla46_c", "densenet121",
    "vgg11", "hrnet_w18_small", "selecsls42", "repvgg_a0", "mobileone_s0", "edgenext_xx_small",
    "efficientformer_l1", "efficientformerv2_s0", "efficientvit_b0", "efficientvit_m0", "fastvit_t8",
    "repghostnet_050", "repvit_m0_9", "starnet_s1", "inception_next_atto", "tiny_vit_5m_224", "tnt_s_patch16_224",
    "twins_svt_small", "pvt_v2_b0", "visformer_tiny", "crossvit_9_240", "coat_lite_tiny", "davit_tiny", "nest_tiny",
    "mvitv2_tiny", "hiera_tiny_224", "eva02_tiny_patch14_224", "ese_vovnet19b_dw", "hgnet_tiny", "shvit_s1",
    "swiftformer_xs", "vit_small_patch14_dinov2", "mambaout_femto", "beit_base_patch16_224", "inception_v3",
    "xception41",
)  # fmt: skip
OF_TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "regnet_x_400mf", "regnet_y_400mf",
    "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn",
    "vit_b_16", "wide_resnet50_2",
)  # fmt: skip
NAMES = [f"timm/{name}" for name in OF_TIMM] + [f"torchvision/{name}" for name in OF_TORCHVISION]
SOME = ("timm/convnext_atto", "timm/mobilenetv3_small_050", "timm/levit_128s", "torchvision/squeezenet1_1")


def load_packages() -> tuple[Any, Any]:
    """timm and torchvision. Operators that torchvision declares in machine code are declared without it."""
    sys.path.append(str(ROOT / "build" / "vision"))
    try:
        import torchvision
    except RuntimeError:  # torchvision was built for another build of torch
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
        import torchvision
    import timm

    return timm, torchvision


_DECLARED: list[Any] = []


def make_model(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model in eval mode, whose running statistics are drawn, too, and an image for it."""
    timm, torchvision = load_packages()
    package, _, architecture = name.partition("/")
    size = SMALL if architecture in SQUARE else FIXED.get(architecture, SIZE)
    torch.manual_seed(0)
    if package == "timm":
        try:
            module = timm.create_model(architecture, num_classes=CLASSES, img_size=size[0] if size == SMALL else size)
        except TypeError:
            module = timm.create_model(architecture, num_classes=CLASSES)
    else:
        known = {"init_weights": False} if architecture in ("googlenet", "inception_v3") else {}
        size = (224, 224) if architecture in ("inception_v3", "vit_b_16") else size
        module = torchvision.models.get_model(architecture, weights=None, num_classes=CLASSES, **known)
    return randomize(module.eval()), torch.randn(1, 3, *size)


def hold_results(name: str) -> None:
    """In f32, or in f64 where PyTorch's own results in f32 are far from those: drawn statistics may do that."""
    module, image = make_model(name)
    with torch.no_grad():
        narrow = module(image)
        exact = copy.deepcopy(module).double()(image.double())
    if (narrow - exact).abs().max() > TOLERANCE / 4 * exact.abs().max():
        module, image = module.double(), image.double()
    compare(module, (image,), tolerance=TOLERANCE)


def time_plan(name: str) -> str:
    """Seconds of a core for the plan of a batch, and the predicted times of it and of data parallel."""
    module, image = make_model(name)
    text = from_torch(module, (torch.randn(BATCH, *image.shape[1:]),)).text
    gc.set_threshold(GARBAGE_THRESHOLD)  # as in `einc compile`
    start = time.process_time()
    bundle = compile_model(text, "model.ein", CompileOptions(machine="dgx-h100")).bundle
    seconds = time.process_time() - start
    by_name = {contender.name: contender for contender in read_report(bundle).contenders}
    data = by_name["data"]
    parallel = f"{data.predicted_ms:.3f} ms" if data.predicted_ms else f"none ({data.reason})"
    return f"{seconds:.0f} s, {bundle.predicted_ms:.3f} ms; data parallel {parallel}"


CHECKS: dict[str, Check] = {"results": hold_results, "plan": time_plan}
EQUAL = list_equal(MODELS, "results")


@pytest.mark.parametrize("name", [name for name in EQUAL if name in SOME])
def test_some_models(name: str) -> None:
    hold_results(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EQUAL if name not in SOME])
def test_further_models(name: str) -> None:
    hold_results(name)


if __name__ == "__main__":
    load_packages()
    chosen = {check: CHECKS[check] for check in CHECKS if f"--{check}" in sys.argv[1:]} or CHECKS
    names = [name for name in sys.argv[1:] if not name.startswith("--")] or NAMES
    fill_table(TABLE, names, chosen, seconds=MAX_SECONDS)
