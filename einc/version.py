"""The version of the compiler, written into every bundle."""

VERSION = "0.1.0"
