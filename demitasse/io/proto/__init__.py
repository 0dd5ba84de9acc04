"""Caffe's messages and prototxt: reading, writing, and upgrades of old formats."""

from typing import TYPE_CHECKING, Any

from demitasse.core.deprecated import warn_once
from demitasse.core.lazy_names import lazy_names
from demitasse.io.proto import caffe_pb2
from demitasse.io.proto.caffe_pb2 import *  # noqa: F403
from demitasse.io.proto.read import (
    ReadNet,
    parse_text,
    read_net,
    read_net_arrays,
    read_net_params,
    read_net_params_binary,
    read_net_text,
    read_solver_params,
    read_text,
)
from demitasse.io.proto.read_binary import escape_invalid_utf8, read_binary
from demitasse.io.proto.text.dialects import fork_of_type, forks_of_field
from demitasse.io.proto.upgrade import upgrade_net, upgrade_solver
from demitasse.io.proto.write import text_of, write_binary, write_text

if TYPE_CHECKING:
    from demitasse.io.proto.zero_copy import count_floats, floats, set_floats, stored_shape

__all__ = [
    "ReadNet", "caffe_pb2", "count_floats", "escape_invalid_utf8", "floats", "fork_of_type",
    "forks_of_field", "parse_text", "read_binary", "read_net", "read_net_arrays",
    "read_net_params", "read_net_params_binary", "read_net_text", "read_solver_params",
    "read_text", "set_floats", "stored_shape", "text_of", "upgrade_net", "upgrade_solver",
    "write_binary", "write_text",
]  # fmt: skip
__all__ += caffe_pb2.__all__


_find = lazy_names(__name__, {".zero_copy": "count_floats floats set_floats stored_shape"})


def __getattr__(name: str) -> Any:
    """Import functions that need numpy at first use."""
    if name == "mend_strings":
        warn_once(f"{__name__}.mend_strings", f"{__name__}.escape_invalid_utf8")
        return escape_invalid_utf8
    return _find(name)
