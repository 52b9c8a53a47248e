"""All benchmarks of the project, one after another."""

from __future__ import annotations

from tests.bench import chains

if __name__ == "__main__":
    chains.main()
