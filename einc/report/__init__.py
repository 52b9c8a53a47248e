"""What a plan is shown as: a JSON document, text for a terminal, and a page."""
