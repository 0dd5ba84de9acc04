"""A server that nets answer from, by KServe's protocol, version 2 (Open Inference Protocol).

Messages (``messages``) are read (``reading``) and written (``writing``) as JSON, with values in
binary where a client wants that. A model (``model``) checks what is asked, its queue (``batching``)
joins requests and lets threads run them, and an ASGI application (``app``) answers over HTTP;
``server`` runs it with uvicorn, and ``connections`` cuts off clients that keep it waiting.
"""

from demitasse.inference.serving.messages import InferRequest, InferResponse, Tensor
from demitasse.inference.serving.reading import read_request, read_response
from demitasse.inference.serving.writing import write_request, write_response

__all__ = [
    "InferRequest",
    "InferResponse",
    "Tensor",
    "read_request",
    "read_response",
    "write_request",
    "write_response",
]
