"""Caffe's ``compute_image_mean``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("compute_image_mean")
