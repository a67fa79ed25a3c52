"""Screens compose widgets, read the store and send actions to the app. They do no I/O of their own."""
