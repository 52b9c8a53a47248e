"""What a plan is shown as: a JSON document, text for a terminal, and the operators that it can be restored to."""
