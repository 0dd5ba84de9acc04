"""Caffe's ``caffe``: train, test, time and device_query."""

from demitasse.tools._run import run_caffe

if __name__ == "__main__":
    run_caffe()
