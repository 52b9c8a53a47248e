"""Turns the weights and caches of one plan into those of another: layouts, a plan that moves them, its figures."""
