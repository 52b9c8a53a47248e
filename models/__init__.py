"""The models that come with einc; `einc models list` names them, `einc models copy` writes one out."""
