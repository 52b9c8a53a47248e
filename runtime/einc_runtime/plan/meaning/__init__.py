"""What every operator family means for a plan: derived again here, apart from the code that writes plans.

From the family, the attributes and the types of the input tensors follow the types of the outputs, the indices along
which the operation may be cut, the kernel with its attributes, and how partial outputs are aggregated. From the
intervals of a cut follow the blocks that each function reads and writes. `operations` compares a plan with that.

Each file describes some families. It uses nothing of the compiler and nothing of the kernels.
"""
