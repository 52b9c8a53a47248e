"""`python -m einc` is `einc`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from einc.cli.main import main

    sys.exit(main())
