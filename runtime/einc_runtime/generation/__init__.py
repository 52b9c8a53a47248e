"""Text from decoders: sequences over sessions, the choice of tokens, and a model's own tokenizer and chat template."""
