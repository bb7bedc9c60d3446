"""What holds for all tests."""

import hypothesis

# The same examples in every run, which may take their time on a busy machine.
hypothesis.settings.load_profile("ci")
