"""Which machine, how many of its sites, and how many replicas a model should have: plans of all of them, compared.

A *workload* says what is done again and again for a number of users: the plans of its phases, and how often each runs.
An *offer* is a machine with its sites and price. The *figures* of a plan are what is kept of it. The *advice* is a
table of options: an offer, replicas and users, with the times and rates that follow.
"""
