"""The language `exprog` of exchange programs: from text to a ground program, and whether the program is valid."""
