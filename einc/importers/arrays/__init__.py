"""Operations on arrays of positional dimensions as statements of the model language.

`ArrayProgram` (`program.py`) collects a model: params, inputs, weights, statements, outputs. The functions of the other
files add statements to it, and take and return `Array`s (`values.py`); they mean what numpy's functions of the same
names mean. What is computed from known numbers is folded. Importers of graphs of arrays are written on top of it.
"""
