"""State of the console, without Textual: the fleet as the head tells it, and which part of it a table shows."""
