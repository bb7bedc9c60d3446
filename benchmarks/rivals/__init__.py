"""This project next to other servers of the Responses API, in one run on one scripted model server.

    .venv/bin/python -m benchmarks.rivals                          # half an hour
    .venv/bin/python -m benchmarks.rivals --short                  # one small round, without a figure worth telling
    .venv/bin/python -m benchmarks.rivals --only ours smg agentic-api --rounds 5

All servers run at once and take turns, so that compared figures were measured within seconds of each other; a ratio is
the median of the rounds' ratios. Each server that is not this project's or the host's has its own environment with its
own pins (`constraints/rivals/`), in `.rivals`. One that cannot be installed or started has a row that says so. Linux
only. Progress goes to stderr, the table to stdout.
"""
