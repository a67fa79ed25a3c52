"""Other people's runs as records of ours: a Paceline run from elsewhere, LoadGen's logs, a run of mlcommons/endpoints.

`importing.import_run` is the way in. Input is read without trust and in bounded memory; a record is written aside and renamed.
"""
