"""Every message, enum and enum value under the name that users of pycaffe know.

The types are in ``caffe_pb2.pyi``, which ``python packaging/generate_proto.py`` writes.
"""

from demitasse.io.proto import messages

globals().update(messages.load(__name__))
