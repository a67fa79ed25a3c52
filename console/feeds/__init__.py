"""What fills the store: one protocol, one file for each source. No Textual here."""
