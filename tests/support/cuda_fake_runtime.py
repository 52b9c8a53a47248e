"""cupy's binding of CUDA's runtime, as far as `CupyDriver` uses it, on the fake driver: current devices, and C's order.

It stands between the two: what `CupyDriver` makes of a call of the executor arrives at the fake driver again, so that
an argument in a wrong place, or a device that is not current, is one there.
"""

from __future__ import annotations

from einc_runtime.execution.cuda.driver import DriverError
from tests.support.cuda_fake import Misuse


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


def _converted(method):
    def call(self, *arguments):
        try:
            return method(self, *arguments)
        except DriverError as error:
            raise CUDARuntimeError(error.status) from error

    return call


class FakeRuntime:
    """`driver` is a FakeDriver. What the default stream does is to be waited for before anything else is enqueued."""

    CUDARuntimeError = CUDARuntimeError
    cudaDevAttrMultiProcessorCount = 16
    eventDisableTiming = 2
    memcpyDefault = 4
    streamCaptureModeThreadLocal = 1
    streamNonBlocking = 1

    def __init__(self, driver):
        self.driver, self.current, self.pending = driver, 0, False

    def _enqueues(self):
        if self.pending:
            raise Misuse("the default stream was not waited for, and other streams do not wait for it")

    # Devices

    def getDeviceCount(self):
        return self.driver.device_count()

    def setDevice(self, device):
        self.driver.use(device)
        self.current = device

    def getDeviceProperties(self, device):
        return {"name": self.driver.target(device).name.encode()}

    def deviceGetAttribute(self, attribute, device):
        return {75: 9, 76: 0, 16: 132, 38: 50 << 20}[attribute]

    def memGetInfo(self):
        return self.driver.memory(self.current)

    def deviceGetPCIBusId(self, device):
        return self.driver.address(device)

    def deviceSynchronize(self):
        self.driver.synchronize(self.current)

    def deviceCanAccessPeer(self, device, peer):
        return int(self.driver.can_reach(device, peer))

    def deviceEnablePeerAccess(self, peer):
        if (self.current, peer) in self.driver.peers:
            raise CUDARuntimeError(704)
        self.driver.enable_peer(self.current, peer)

    # Memory

    def malloc(self, size):
        return self.driver.allocate(self.current, size)

    def free(self, pointer):
        self.driver.free(self.current, pointer)

    def hostAlloc(self, size, flags):
        assert flags == 1, "portable"
        return self.driver.allocate_host(size)

    def freeHost(self, pointer):
        self.driver.free_host(pointer)

    def memset(self, pointer, value, size):
        self.driver.fill_bytes(self.current, pointer, value, size)
        self.pending = True

    def memcpy(self, target, source, size, kind):
        self.memcpy2D(target, size, source, size, size, 1, kind)

    def memcpy2D(self, target, target_pitch, source, source_pitch, width, height, kind):
        assert kind == self.memcpyDefault
        self.driver.copy(self.current, target, target_pitch, source, source_pitch, width, height)
        self.pending = True

    def memcpyAsync(self, target, source, size, kind, stream):
        self.memcpy2DAsync(target, size, source, size, size, 1, kind, stream)

    def memcpy2DAsync(self, target, target_pitch, source, source_pitch, width, height, kind, stream):
        assert kind == self.memcpyDefault
        self._enqueues()
        self.driver.copy_async(target, target_pitch, source, source_pitch, width, height, stream)

    # Streams, events, graphs

    def streamSynchronize(self, stream):
        assert stream == 0, "no other is waited for"
        self.pending = False

    def streamCreateWithFlags(self, flags):
        assert flags == self.streamNonBlocking
        return self.driver.create_stream(self.current)

    def streamDestroy(self, stream):
        self.driver.destroy_stream(stream)

    def streamWaitEvent(self, stream, event):
        self.driver.wait(stream, event)

    def streamBeginCapture(self, stream, mode):
        assert mode == self.streamCaptureModeThreadLocal
        self._enqueues()
        self.driver.begin_capture(stream)

    def streamEndCapture(self, stream):
        return self.driver.end_capture(stream)

    def eventCreateWithFlags(self, flags):
        assert flags in (0, self.eventDisableTiming)
        return self.driver.create_event(self.current, timing=flags == 0)

    def eventDestroy(self, event):
        self.driver.destroy_event(event)

    def eventRecord(self, event, stream):
        self._enqueues()
        self.driver.record(event, stream)

    def eventSynchronize(self, event):
        self.driver.wait_on_host(event)

    def eventQuery(self, event):
        return 0 if self.driver.has_happened(event) else 600

    def eventElapsedTime(self, start, end):
        return self.driver.elapsed_ms(start, end)

    def graphInstantiate(self, graph):
        return self.driver.instantiate(graph)

    def graphDestroy(self, graph):
        self.driver.destroy_graph(graph)

    def graphExecDestroy(self, instance):
        self.driver.destroy_instance(instance)

    def graphUpload(self, instance, stream):
        self.driver.upload(instance, stream)

    def graphLaunch(self, instance, stream):
        self._enqueues()
        self.driver.launch(instance, stream)


for _name, _method in list(vars(FakeRuntime).items()):
    if callable(_method) and not _name.startswith("_") and _name != "CUDARuntimeError":
        setattr(FakeRuntime, _name, _converted(_method))
