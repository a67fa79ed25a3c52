"""MLPerf's compliance tests of LLMs (TEST06, TEST07, TEST09): what each makes LoadGen do, and whether its log passes.

`audits` has the tests as data and writes audit.config; `verify` reads an attempt's log and judges it by our own code;
`official` runs the scripts of mlcommons/inference beside that, where somebody has them.
"""
