"""Makes weights of 8 and 4 bits from published ones: rounding (`rounding`) and folders of safetensors (`folders`)."""
