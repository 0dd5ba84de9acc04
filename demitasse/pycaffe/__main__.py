"""Run a program written for Caffe: ``python -m demitasse.pycaffe script.py arguments``."""

from demitasse.pycaffe.launch import main

if __name__ == "__main__":
    main()
