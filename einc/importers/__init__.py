"""Models of other formats as texts of the model language.

`hf` imports the configurations of Hugging Face models: `config` reads a configuration without trusting it, `decoders`
and `encoders` know the families of models, and `writing` lays the text out. Nothing in a folder is executed.
`onnx` imports ONNX files, node by node. `arrays` is what importers of graphs of arrays are written with.
"""
