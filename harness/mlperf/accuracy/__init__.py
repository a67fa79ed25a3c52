"""Accuracy of an attempt: from LoadGen's accuracy log over texts and extracted answers to exact_match and its gate.

`log` reads the log as a stream, `truths` the dataset's right answers, `texts` turns token ids into text, `answers` and
`equality` find and compare answers, `subsets` know which rule a subset is scored by, `command` runs scorers of others, and
`score` puts it together.
"""
