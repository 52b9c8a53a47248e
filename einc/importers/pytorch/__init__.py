"""Models that `torch.export` saved: archives are read as data, and ATen operators become statements of the language.

`archive.py` reads a `.pt2` file, `exported.py` checks the graph in it, `symbols.py` its dynamic extents. `convert.py`
walks the graph, and the files of `aten/` say what each operator becomes. `exporting.py` alone imports torch.
"""
