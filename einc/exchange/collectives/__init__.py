"""Collective algorithms of other libraries, step by step for thread blocks: read, proved, and turned into programs.

`algorithm.py` says what one is. `msccl_xml.py` reads and writes the algorithms of MSCCL, `mscclpp_json.py` the
execution plans of MSCCL++. `verifying.py` proves one; `translating.py` makes exchange programs of them, and the
reverse.
"""
