"""What the compiler can prove of a plan file beyond the runtime's proof: its figures, and that it computes a model."""
