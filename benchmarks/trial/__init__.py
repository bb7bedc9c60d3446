"""The operator's trial: what users see of each trouble that a deployment has sooner or later, on each store.

    .venv/bin/python -m benchmarks.trial                                # all rows in full: an hour on two cores
    .venv/bin/python -m benchmarks.trial --short                        # the short form, which is also a test
    .venv/bin/python -m benchmarks.trial --only replacement --store sqlite

Two servers run behind the nginx of the template `scale-out`, on one store and one model server, while clients send
whole answers, streams and background responses without a pause. Then something happens to a server, to the store or to
a clock. At the end, every acknowledged response is looked up. It prints a table in Markdown, and ends with 1 if a row
has a fault. A row is a function of one module; `rows.py` lists them.
"""
