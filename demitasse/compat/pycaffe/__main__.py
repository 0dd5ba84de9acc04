"""Run a program written for Caffe: ``python -m demitasse.pycaffe script.py arguments``."""

from demitasse.compat.pycaffe.launch import main

if __name__ == "__main__":
    main()
