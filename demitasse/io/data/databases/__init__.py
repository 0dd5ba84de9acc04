"""Databases and other files of records, and the records themselves."""
