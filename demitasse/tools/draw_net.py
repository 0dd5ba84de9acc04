"""Caffe's ``draw_net.py``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("draw_net")
