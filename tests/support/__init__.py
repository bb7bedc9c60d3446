"""What the tests run against: a scripted upstream, live stacks, and judges of the wire."""
