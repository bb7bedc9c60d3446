"""Asks model servers what they take and how they answer: for the command `doctor`, and on a schedule for the page."""
