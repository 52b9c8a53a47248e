"""From a published model to the plans that make text with it: which there are, and where they are kept."""
