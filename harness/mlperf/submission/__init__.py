"""An MLPerf Inference v6.1 submission made of records: what it needs, what of it is there, whether it holds, and its tree.

demands      what the rules want of a model, as data
candidates   one attempt of a run with its logs, scores and the place it would take in a submission
checks       why an attempt, or the whole set, cannot be submitted, in words
plan         attempts sorted into places; everything that speaks against the set
tree         the folder, written aside and renamed
texts        README and placeholders in it
system       the system description: SYSTEM.toml and the system's JSON
inventory    facts of this node
describing   a SYSTEM.toml drafted from such facts and from a record
"""
