"""Answers requests over HTTP as OpenAI's API does: texts and vectors of published models, by plans."""
