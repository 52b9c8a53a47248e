"""From how many sites on searches do less, so that their time grows about as the sites do."""

MANY_SITES = 8
"""On more sites, sets and orders of sites are too many to look at all of them: there are 2**8 and 8! of eight. A search
takes longer there, about as the square of the sites, and each site does little."""

LARGE_MACHINE_SITES = 16
"""Two computers of eight. On more sites, each candidate takes so long that fewer of them are tried."""

MAX_SWITCHED_SITES = 72
"""What a switch of the presets joins at most. On more sites, a part is planned first, and no flow is priced."""

MAX_TIMED_SITES = 128
"""On more sites, no kernel is timed that is not of the plan: no other cuts are, and no bound is computed."""
