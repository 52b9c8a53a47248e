"""A plan file in the compiler's own terms: the computation, the cuts, the machine, and the time that it takes."""
