"""What plans need of a machine, one primitive at a time: each is probed alone, so that a broken one is one line.

Cases that need a broken primitive are not run.
"""

from __future__ import annotations

CAPTURE, TRITON, SHARED, CUBLAS, EPILOGUE, POOLS = "capture", "triton", "shared", "cublas", "epilogue", "pools"
CUDNN, FLASH, FLASH2, FLASH3, FLASH4 = "cudnn", "flash", "flash-attn", "flash-attn-3", "flash-attn-4"
CUDNN_GRAPH, PRODUCTS = "cudnn-frontend", "products"
ROWS, PINNED, PEERS, DEVICES, MULTIMEM = "rows", "pinned", "peers", "devices", "multimem"
NCCL = "nccl"

TOLD = {
    DEVICES: "the GPUs",
    CAPTURE: "a graph captured on two streams",
    TRITON: "a Triton kernel, captured",
    SHARED: "a Triton kernel with more than 48 KB of shared memory, captured",
    CUBLAS: "cuBLAS, captured",
    EPILOGUE: "cuBLASLt with an epilogue, captured",
    PRODUCTS: "our own kernels for products, captured",
    POOLS: "PyTorch's memory pools in our capture",
    CUDNN: "attention by PyTorch's cuDNN in our capture",
    CUDNN_GRAPH: "attention by cuDNN's own package in our capture, into our memory",
    FLASH: "attention by PyTorch's flash-attn in our capture",
    FLASH2: "attention by flash-attn in our capture",
    FLASH3: "attention by flash-attn 3 in our capture",
    FLASH4: "attention by flash-attn 4 in our capture",
    MULTIMEM: "memory by handles (cuMemCreate), and sums by multicast",
    NCCL: "NCCL, captured; with several GPUs, a plan with a rank on each",
    ROWS: "2-D copies, GB/s by the bytes of a row",
    PINNED: "copies from and to pinned memory",
    PEERS: "copies between GPUs, or within the only one",
}
"""All primitives, in the order of the page."""

TIMED = (ROWS, PINNED, PEERS)
"""Those whose speed is told: each has the GPU to itself."""

LIBRARIES = (CUDNN, CUDNN_GRAPH, FLASH, FLASH2, FLASH3, FLASH4)
