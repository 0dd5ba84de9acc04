"""Caffe's ``resize_and_crop_images``."""

from demitasse.tools._run import run

if __name__ == "__main__":
    run("resize_and_crop_images")
