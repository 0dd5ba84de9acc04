"""Caffe's tools by their names: ``python -m demitasse.tools.convert_imageset ...`` and so on.

Each is the verb of that name, with Caffe's exit code 1 for every failure.
"""
