"""Caffe's ``parse_log``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("parse_log")
