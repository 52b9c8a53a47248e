"""Rewrites of a plan's tasks that compute the same results in less time. `README.md` says why they are correct."""

from einc_runtime.execution.rewrites.channel_order import order_channels
from einc_runtime.execution.rewrites.deduplication import find_merged_states
from einc_runtime.execution.rewrites.kernel_splitting import KernelTime
from einc_runtime.execution.rewrites.map_joining import JoinedMap
from einc_runtime.execution.rewrites.pipeline import MAX_COALESCED_BYTES, RewriteOptions, RewrittenTask, rewrite
from einc_runtime.execution.rewrites.separate_results import separate_results

__all__ = [
    "MAX_COALESCED_BYTES",
    "JoinedMap",
    "KernelTime",
    "RewriteOptions",
    "RewrittenTask",
    "find_merged_states",
    "order_channels",
    "rewrite",
    "separate_results",
]
