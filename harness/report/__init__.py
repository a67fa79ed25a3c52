"""A run's record as a page that can be sent: HTML, Markdown, charts and data, all made from the record alone."""
