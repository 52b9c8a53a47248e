"""`python -m einc_runtime` is `einc-runtime`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from einc_runtime.cli.main import main

    sys.exit(main())
