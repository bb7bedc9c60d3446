"""What the built-in page shows: its files, and views of responses with rendered Markdown."""
