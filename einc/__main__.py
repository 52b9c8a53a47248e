"""`python -m einc` is `einc`."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python looks into the current folder first, where a user's own packages may be called as ours are.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from einc.cli.main import main

    sys.exit(main())
