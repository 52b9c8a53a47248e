"""The version of einc and of its runtime, which is written into every plan and printed by `--version`."""

VERSION = "0.1.0"
