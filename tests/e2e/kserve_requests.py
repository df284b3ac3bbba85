"""Requests of the KServe protocol, made by hand so that they can be wrong."""

import torch
from tritonclient.grpc import service_pb2

DATATYPES = {torch.float32: "FP32", torch.int64: "INT64"}


def request_of(model, tensors):
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, tensor in tensors.items():
        request.inputs.add(
            name=name, datatype=DATATYPES[tensor.dtype], shape=list(tensor.shape)
        )
        request.raw_input_contents.append(tensor.numpy().tobytes())
    return request
