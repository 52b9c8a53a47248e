"""The command line: with `einc_runtime.cli`, the only package that prints or exits."""
