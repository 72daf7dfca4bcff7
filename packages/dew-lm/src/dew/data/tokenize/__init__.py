"""`dew tokenize`: text to a folder of ids, in parallel, and from where it stopped when it is killed."""
