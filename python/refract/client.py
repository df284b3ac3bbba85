"""`refract.Client`: requests over gRPC to a CPU node, or to any KServe v2 server."""

import dataclasses

import numpy
import tritonclient.grpc
from tritonclient.utils import np_to_triton_dtype


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs of one request, and how they came about."""

    outputs: dict  # {name: numpy array}
    version: str  # of the model, that answered
    parameters: dict  # as sent; docs/how-to/monitoring.md lists them

    @property
    def retries(self):
        """Further attempts at GPU nodes after failures."""
        return self.parameters.get("retries", 0)

    @property
    def hedged(self):
        """The request was also sent to a second GPU node: the first was slow."""
        return self.parameters.get("hedged", False)

    @property
    def ran_locally(self):
        """The split model ran as a whole on the CPU node."""
        return self.parameters.get("ran_locally", False)

    @property
    def replaced_ids(self):
        """Number of ids outside their table, which the id policy replaced."""
        return self.parameters.get("replaced_ids", 0)

    @property
    def newest_version(self):
        """The version that should have answered but was not ready, or None."""
        return self.parameters.get("newest_version")

    @property
    def delta_sequence(self):
        """The last delta of the tables that were read, or None."""
        return self.parameters.get("delta_sequence")


class Client:
    """A connection to HOST:PORT, opened at the first request.

    Threads may share a client. token: a bearer token. certificates: a PEM file of
    roots, which turns on TLS; certificate and key: PEM files of the client's own,
    for mTLS.
    """

    def __init__(self, address, *, token=None, certificates=None, certificate=None, key=None):
        self._client = tritonclient.grpc.InferenceServerClient(
            address,
            ssl=certificates is not None,
            root_certificates=certificates,
            certificate_chain=certificate,
            private_key=key,
        )
        self._headers = {"authorization": f"Bearer {token}"} if token else None

    def infer(self, model, inputs, *, deadline=None, version="", outputs=None):
        """Asks for the scores of one request; returns an Answer.

        inputs: {name: array}. deadline: seconds from now, which the CPU node and
        the GPU node see; None waits for ever. outputs: names, all by default.
        Raises ValueError for an array that the protocol has no type for, and
        tritonclient.utils.InferenceServerException, whose status() is gRPC's code
        and whose message() names what is wrong.
        """
        tensors = [_input(name, values) for name, values in inputs.items()]
        wanted = outputs and [tritonclient.grpc.InferRequestedOutput(n) for n in outputs]
        result = self._client.infer(
            model,
            tensors,
            model_version=version,
            outputs=wanted,
            client_timeout=deadline,
            headers=self._headers,
        )
        response = result.get_response()
        return Answer(
            outputs={item.name: result.as_numpy(item.name) for item in response.outputs},
            version=response.model_version,
            parameters={
                name: getattr(value, value.WhichOneof("parameter_choice"))
                for name, value in response.parameters.items()
            },
        )

    def close(self):
        self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _input(name, values):
    array = numpy.asarray(values)
    datatype = np_to_triton_dtype(array.dtype)
    if datatype is None or datatype == "BYTES":
        raise ValueError(f"input {name!r}: no tensor of {array.dtype} can be sent")
    tensor = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
    return tensor.set_data_from_numpy(array)
