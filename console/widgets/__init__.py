"""Things that draw. They are given a store (or a part of it) to read and a Paint; they do no I/O and own no timers."""
