"""What is predicted, held against what other people measured on GPUs."""
