"""The version of einc and of its runtime, which is written into every plan and told by both commands."""

VERSION = "0.1.0"
