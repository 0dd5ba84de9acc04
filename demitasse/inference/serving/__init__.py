"""An inference server with KServe's protocol, version 2 (Open Inference Protocol).

Messages (``messages``, ``parsing``) are JSON, with binary values if the client asks for them. A
model (``model``) validates requests, and its queue (``batching``) batches them. The application
(``app``) responds to requests, which ``connections`` receive by HTTP/1.1. ``server`` runs it all.
"""

from demitasse.inference.serving.messages import (
    InferRequest,
    InferResponse,
    Tensor,
    write_request,
    write_response,
)
from demitasse.inference.serving.parsing import read_request, read_response

__all__ = [
    "InferRequest",
    "InferResponse",
    "Tensor",
    "read_request",
    "read_response",
    "write_request",
    "write_response",
]
