"""Models of other formats as texts of the model language.

`hf` is the way in for the configurations of Hugging Face models: `fields` reads a configuration without trusting it,
`decoders` and `encoders` know the families of models, `writing` lays the text out. Nothing of a folder is executed.
"""
