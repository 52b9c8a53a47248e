"""The world of every seed: three in four are of the executor, one is of files."""

from __future__ import annotations

from tests.worlds.executor_world import ExecutorWorlds
from tests.worlds.file_world import FileWorlds
from tests.worlds.simulation import Finding

_over: list[ExecutorWorlds] = []
"""Worlds that ended with a finding. Their threads stay where they are: to free them would run their cleanup."""


class Worlds:
    """Runs the worlds of seeds."""

    def __init__(self) -> None:
        self._executor, self._files = ExecutorWorlds(), FileWorlds()

    def run(self, seed: int) -> str:
        """Says what was wrong in the world of a seed. Raises Finding where it did harm."""
        if seed % 4 == 2:
            return f"files: {self._files.run(seed)}"
        try:
            return f"executor: {self._executor.run(seed)}"
        except Finding:
            _over.append(self._executor)
            self._executor = ExecutorWorlds()
            raise
