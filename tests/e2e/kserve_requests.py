"""Requests of the KServe protocol: by tritonclient, and by hand so that they can
be wrong. Tensors: {name: torch.Tensor}."""

import torch
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

DATATYPES = {torch.float32: "FP32", torch.int64: "INT64"}


def infer_inputs(tensors):
    """The inputs of a request of tritonclient."""
    inputs = []
    for name, tensor in tensors.items():
        item = triton.InferInput(name, list(tensor.shape), DATATYPES[tensor.dtype])
        item.set_data_from_numpy(tensor.numpy())
        inputs.append(item)
    return inputs


def request_of(model, tensors):
    """A message whose fields a test may change."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, tensor in tensors.items():
        request.inputs.add(
            name=name, datatype=DATATYPES[tensor.dtype], shape=list(tensor.shape)
        )
        request.raw_input_contents.append(tensor.numpy().tobytes())
    return request
