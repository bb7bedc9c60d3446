"""The prefixes of the keys of what is packed.

    co/<object>/<number>   a chain that is packed in the object (`Chain`), also if it is one response; or items of a
                           conversation that follow each other
    cp/<object>            a server may still add chains to that object; the row expires
    cp/next/<slice>        how far the server is that packs these responses (`shares.py`); the row expires
    cp/folder              the folder of the object store that has the objects of this store
    cl/<object>/<number>   the references of that chain's responses that are still to be deleted, and its rows that are
                           still to be moved into pages (`Release`)
    ch/<response>          the response was brought back, and is not packed again until the row expires
    ch/<conversation>      the same of items of the conversation; or all its items are packed, if its row has this
                           version

    ck/<partition>/<first>    rows of packed chains, many together (`pages.py`)

The tag of the chain's responses follows those of an object, so that they are in the partition of these.
"""

from __future__ import annotations

from typing import Final

CHAINS: Final = "co/"
RELEASES: Final = "cl/"
FOLDER: Final = "cp/folder"
OPEN: Final = "cp/"
HELD: Final = "ch/"
PAGES: Final = "ck/"

ITEMS: Final = "m/"
"""The prefix of items of conversations."""
