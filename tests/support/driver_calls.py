"""What the drivers of GPUs call."""

from __future__ import annotations

DRIVER_CALLS: dict[str, int] = {
    "deviceCanAccessPeer": 2, "deviceEnablePeerAccess": 1, "deviceGetAttribute": 2, "deviceGetPCIBusId": 1,
    "deviceSynchronize": 0, "eventCreateWithFlags": 1, "eventDestroy": 1, "eventElapsedTime": 2, "eventQuery": 1,
    "eventRecord": 2, "eventSynchronize": 1, "free": 1, "freeHost": 1, "getDeviceCount": 0, "getDeviceProperties": 1,
    "graphDestroy": 1, "graphExecDestroy": 1, "graphInstantiate": 1, "graphLaunch": 2, "graphUpload": 2, "hostAlloc": 2,
    "malloc": 1, "memGetInfo": 0, "memcpy": 4, "memcpy2D": 7, "memcpy2DAsync": 8, "memcpyAsync": 5, "memset": 3,
    "setDevice": 1, "streamBeginCapture": 2, "streamCreateWithFlags": 1, "streamDestroy": 1, "streamEndCapture": 1,
    "streamSynchronize": 1, "streamWaitEvent": 2,
}  # fmt: skip
"""The functions in use, by the names of `cupy.cuda.runtime`, and their argument counts."""
