"""`python -m einc` is `einc`."""

from __future__ import annotations

import sys

from einc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
