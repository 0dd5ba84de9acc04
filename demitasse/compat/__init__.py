"""Interfaces of other projects over this engine: Caffe's Python interface, OpenCV's ``cv2.dnn``."""
