"""The search for the plan that is predicted to be fastest."""
