"""Stand-ins for kernels of GPUs: numpy's kernels on the memory of a fake driver."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import storage_dtype
from einc_runtime.errors import ValueFault
from einc_runtime.kernels import registry
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT, Alternatives, Description, GpuKernel, ResultBytes
from einc_runtime.kernels.triton.epilogue import build_with_epilogue
from tests.support.cuda_fake import Misuse
from tests.support.cuda_fake_queue import Running


def array_at(pointer, shape, strides, dtype):
    """A numpy view of memory at an address."""
    extent = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
    if 0 in shape:
        return np.empty(shape, dtype)
    raw = (ctypes.c_uint8 * extent).from_address(pointer)
    return np.ndarray(shape, dtype, raw, 0, strides)


class AwaitingFlags(Running):
    """A kernel that has told its peers that it has begun, and reads nothing before all of them have. If it is
    gathering, it tells them when it has written, and ends when all of them have."""

    def __init__(self, driver, device, flags, run):
        self.driver, self.device, self.flags, self.run = driver, device, flags, run
        self.tell(flags.peers)
        self.has_run = False

    def tell(self, addresses):
        for address in addresses:
            peer = self.driver._inside(address, 4, 4, 1)
            if (self.device, peer) not in self.driver.peers or (self.device, peer) in self.driver.silent:
                raise Misuse(f"device {self.device} sets a flag on device {peer}, which it does not reach")
            ctypes.c_int32.from_address(address).value = 1

    def are_set(self, first):
        count = len(self.flags.peers)
        address = self.flags.awaited + 4 * first
        if self.driver._inside(address, 4 * count, 4 * count, 1) != self.device:
            raise Misuse("flags of another device are awaited")
        return all(ctypes.c_int32.from_address(address + 4 * k).value for k in range(count))

    def has_ended(self):
        count = len(self.flags.peers)
        if not self.has_run and self.are_set(0):
            self.run()
            for written, copy in self.flags.copies:
                np.copyto(view(copy), view(written))
                self.driver.gathered += 1
            self.has_run = True
            self.tell([address + 4 * count for address in self.flags.peers] if self.flags.is_gathering else ())
        return self.has_run and (not self.flags.is_gathering or self.are_set(count))


def view(array):
    return array_at(array.pointer, array.shape, array.strides, storage_dtype(array.dtype))


class NumpyKernels:
    """The kernels on the memory of a fake driver. `fail` names a stage and a kernel that fails there."""

    READS_PEERS = ("aggregation", "logsumexp", "topk", "defined", "defined_exact")
    COMPLAINTS = ("index", "append", "rope", "expert_matmul")

    def __init__(self, driver, *, fail=None):
        self.driver, self.fail = driver, fail
        self.closed = 0
        self.targets = set()
        self.products = {}
        self.early_bytes = 0
        self.waited_by_flags = 0  # bound kernels

    def prepare_kernel(self, invocation, target):
        self._stage("prepare", invocation.name)
        inputs, outputs = invocation.inputs, invocation.outputs
        kernel = registry.prepare(invocation.on(list(map(view, inputs)), list(map(view, outputs))), "numpy")
        return self._wrapped(invocation.name, kernel, (*inputs, *outputs), target)

    def prepare_aggregate(self, aggregation, reads, write, target, flags=None):
        self._stage("prepare", "map")
        if write.device != target.device:
            raise Misuse("an aggregation that writes elsewhere")
        kernel = registry.prepare_aggregate(aggregation, list(map(view, reads)), view(write), "numpy")
        return self._wrapped("aggregation", kernel, (*reads, write), target, flags)

    def prepare_joint_aggregation(self, invocation, target):
        reads, writes = invocation.reads, invocation.writes
        on_views = invocation.on(list(map(view, reads)), list(map(view, writes)))
        kernel = registry.prepare_joint_aggregation(on_views, "numpy")
        return self._wrapped(invocation.aggregation, kernel, (*reads, *writes), target)

    def prepare_moves(self, reads, writes, target):
        self._stage("prepare", "moves")
        pairs = [(view(read), view(write)) for read, write in zip(reads, writes, strict=True)]

        def launch(stream):
            self.driver.kernel(stream, "moves", lambda: [np.copyto(write, read) for read, write in pairs])

        return GpuKernel(lambda workspace, status: launch, Description("numpy", np.__version__, "moves"))

    notes = ()

    def prepare_multicast_sum(self, read, write, target):
        """Adds what all devices hold, in the order of their addresses, which is none that a plan states."""
        self._stage("prepare", "multicast")
        parts = sorted(self.driver.virtual.parts(read.pointer))
        views = [view(replace(read, pointer=pointer)) for pointer in parts]
        into = view(write)

        def run():
            for pointer in (read.pointer, write.pointer):
                self.driver.virtual.require_access(target.device, pointer)
            into[...] = np.sum([part.astype("f4") for part in views], axis=0).astype(into.dtype)

        def launch(stream):
            self.driver.kernel(stream, "multicast sum", run)

        return GpuKernel(lambda workspace, status: launch, Description("numpy", np.__version__, "multicast sum"))

    def prepare_early_read(self, reads, target):
        """Counts what is read."""
        self._stage("prepare", "early read")
        if any(array.device != target.device for array in reads):
            raise Misuse("weights of another device are read ahead")

        def run():
            self.early_bytes += sum(array.nbytes for array in reads)

        def launch(stream):
            self.driver.kernel(stream, "early read", run)

        return GpuKernel(lambda workspace, status: launch, Description("numpy", np.__version__, "early read"))

    def prepare_with_epilogue(self, first, then, position, target):
        return None

    def prepare_batched_pair(self, first, second, target):
        return None

    def prepare_gated_pair(self, pair, target):
        return None

    def prepare_launch(self, kind, parts, kept, target, flags=None):
        return None

    def _await_flags(self, flags, target, run):
        """What a kernel does on the fake driver, if it has flags."""
        self.waited_by_flags += flags is not None
        return run if flags is None else lambda: AwaitingFlags(self.driver, target.device, flags, run)

    def list_alternatives(self, limit):
        """Two ways for a product of every form: the usual one computes it twice, and so takes longer."""

        def twice(launch):
            return lambda stream: (launch(stream), launch(stream))

        return [
            Alternatives(
                name,
                target.name,
                "numpy",
                target.device,
                (b"", "numpy"),
                (twice(launch), launch),
                ResultBytes(output.pointer, output.size, output.dtype) if output.compact else None,
            )
            for name, (launch, output, target) in self.products.items()
        ][:limit]

    def give_up(self, reason):
        return False

    def versions(self):
        return {"numpy": np.__version__}

    def close(self):
        self.closed += 1

    def _stage(self, stage, name):
        if self.fail == (stage, name):
            raise RuntimeError(f"no {stage} of {name}")

    def _wrapped(self, name, kernel, operands, target, flags=None):
        remote_pairs = {(target.device, operand.device) for operand in operands if operand.device != target.device}
        if remote_pairs and name not in self.READS_PEERS:
            raise Misuse(f"{name} for device {target.device} is given memory of {remote_pairs}")
        complaint = f"a bad value for {name}" if name in self.COMPLAINTS else None

        def bind(workspace, status):
            self._stage("bind", name)
            if kernel.scratch and (not workspace or workspace % WORKSPACE_ALIGNMENT):
                raise Misuse("no workspace, or a crooked one")
            scratch = array_at(workspace, (kernel.scratch,), (1,), np.dtype(np.uint8)) if kernel.scratch else None
            run = kernel.bind(np.empty(0, np.uint8) if scratch is None else scratch)

            def guarded():
                if self.driver.virtual is not None:
                    for operand in operands:
                        self.driver.virtual.require_access(target.device, operand.pointer)
                if not remote_pairs <= self.driver.peers:
                    raise Misuse(f"{name} reads the memory of a device without access")
                with np.errstate(all="ignore"):
                    try:
                        run()
                    except ValueFault:
                        ctypes.c_int32.from_address(status).value = 1

            work = self._await_flags(flags, target, guarded)

            def launch(stream):
                self._stage("launch", name)
                self.driver.kernel(stream, name, work)

            if name == "contract":
                shape = "x".join(map(str, operands[-1].shape))
                self.products.setdefault(f"product {shape}", (launch, operands[-1], target))
            return launch

        return GpuKernel(bind, Description("numpy", np.__version__, name), kernel.scratch, complaint)


class Together(NumpyKernels):
    """Runs a contraction and its map as one kernel where an epilogue could: only the result is written."""

    def __init__(self, driver):
        super().__init__(driver)
        self.pairs = []

    def prepare_with_epilogue(self, first, then, position, target):
        if build_with_epilogue(first, then, position) is None:
            return None
        self.pairs.append((first, then))
        middle, output = np.zeros(first.outputs[0].shape, "f4"), view(then.outputs[0])
        reads, operands = list(map(view, first.inputs)), list(map(view, then.inputs))
        operands[position] = middle
        kernels = [
            registry.prepare(invocation.on(sources, [into]), "numpy")
            for invocation, sources, into in ((first, reads, middle), (then, operands, output))
        ]

        def run():
            for kernel in kernels:
                kernel.bind(np.empty(kernel.scratch, np.uint8))()

        def bind(workspace, status):
            return lambda stream: self.driver.kernel(stream, "contract with epilogue", run)

        return GpuKernel(bind, Description("together", "1", "contract with epilogue"))
