"""The command line `einc-runtime`, and what `einc` builds its own on: of this package, only it prints or exits."""
