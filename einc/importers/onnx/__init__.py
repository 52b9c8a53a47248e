"""ONNX models as texts of the model language.

`files` reads a file without trusting it, `graphs` walks through its nodes, and each other module has the operators of
one kind, as calls of `einc.importers.arrays`.
"""
