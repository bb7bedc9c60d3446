"""Switches the counting of usage on and off in a process that has this folder in PYTHONPATH: Python imports it first.

The first byte of the file that SWITCHED_COUNTING names says whether responses are counted.
"""

import mmap
import os
from collections.abc import Sequence

if "SWITCHED_COUNTING" in os.environ:
    from llama_stack_responses.features.usage import counting
    from llama_stack_responses.store.ends import Ended
    from llama_stack_responses.store.placement import Placement
    from llama_stack_responses.store.records import Op

    _file = os.open(os.environ["SWITCHED_COUNTING"], os.O_RDONLY)
    _switch = mmap.mmap(_file, 1, access=mmap.ACCESS_READ)
    _count = counting.count

    def _switched(metadata_key: str | None, placement: Placement, ended: Ended) -> Sequence[Op]:
        return _count(metadata_key, placement, ended) if _switch[0] else ()

    counting.count = _switched
