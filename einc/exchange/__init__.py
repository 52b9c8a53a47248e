"""Exchange programs: what the sites of a machine send each other, and combine, between two operators of a plan.

- `language`: what is an exchange program, and when is it valid?
- `simulation`: how long does it take on a machine?
- `bounds`: how fast can any program for the same preamble be?
- `synthesis`: how is a fast one found?

`network` is the machine as bounds and synthesis see it, `memberships` enumerates open partitions, and `naive` has the
body that every other body is compared with.
"""
