"""Input and output are checked: by whom, in which pieces, and what is held back until then."""
