"""Caffe's ``net_speed_benchmark``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("net_speed_benchmark")
